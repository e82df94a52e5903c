//! The programs of the distribution that cases need: where they are, and which files they use.

use quell_bench::workload::find_program;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of the distribution that a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// Its name on `PATH`.
    pub name: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    /// The folder of its versions, where it is not on `PATH`: the program is in `bin` of the newest version.
    pub versions: Option<&'static str>,
}

impl Program {
    pub(super) const CYCLICTEST: Program = Program::of("cyclictest", "rt-tests");
    pub(super) const HACKBENCH: Program = Program::of("hackbench", "rt-tests");
    pub(super) const STRESS_NG: Program = Program::of("stress-ng", "stress-ng");
    pub(super) const PERF: Program = Program::of("perf", "linux-perf");
    pub(super) const XZ: Program = Program::of("xz", "xz-utils");
    pub(super) const REDIS: Program = Program::of("redis-server", "redis-server");
    pub(super) const REDIS_BENCHMARK: Program = Program::of("redis-benchmark", "redis-tools");
    pub(super) const MAKE: Program = Program::of("make", "make");
    pub(super) const GCC: Program = Program::of("gcc", "gcc");
    pub(super) const AS: Program = Program::of("as", "binutils");
    pub(super) const MEMCACHED: Program = Program::of("memcached", "memcached");
    pub(super) const NGINX: Program = Program::of("nginx", "nginx-light");
    pub(super) const INITDB: Program = Program::of_postgresql("initdb");
    pub(super) const POSTGRES: Program = Program::of_postgresql("postgres");
    pub(super) const PGBENCH: Program = Program::of_postgresql("pgbench");

    const fn of(name: &'static str, package: &'static str) -> Program {
        Program {
            name,
            package,
            versions: None,
        }
    }

    const fn of_postgresql(name: &'static str) -> Program {
        Program {
            versions: Some("/usr/lib/postgresql"),
            ..Program::of(name, "postgresql")
        }
    }

    /// The program's file on this machine.
    ///
    /// # Errors
    /// Where the program is not installed.
    pub(super) fn find(self) -> anyhow::Result<PathBuf> {
        let versions = self.versions.map(std::fs::read_dir);
        let versions = versions.into_iter().flatten().flatten().flatten();
        let of_version = |folder: DirEntry| {
            let number: u32 = folder.file_name().to_str()?.parse().ok()?;
            let file = folder.path().join("bin").join(self.name);
            file.is_file().then_some((number, file))
        };
        match versions.filter_map(of_version).max() {
            Some((_, file)) => Ok(file),
            None => find_program(self.name, self.package),
        }
    }

    /// Why the program cannot be used here, if it cannot.
    pub(super) fn missing(self) -> Option<String> {
        self.find().err().map(|error| format!("{error:#}"))
    }

    /// The program's file on this machine, and the files and folders that it uses; empty where it is not
    /// installed.
    pub fn files(self) -> Vec<PathBuf> {
        let Ok(file) = self.find() else {
            return Vec::new();
        };
        let paths = |program: &Path, arguments: &[&str]| -> Vec<PathBuf> {
            let asked = Command::new(program).args(arguments).output();
            let said = asked.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
            let said = said.unwrap_or_default();
            said.lines()
                .map(|line| PathBuf::from(line.trim()))
                .collect()
        };
        let used = match self {
            Program::GCC => paths(&file, &["-print-prog-name=cc1"]),
            Program::POSTGRES => {
                let config = file.with_file_name("pg_config");
                // Of PostgreSQL's libraries a new cluster loads these.
                let libraries = paths(&config, &["--pkglibdir"]);
                let libraries = libraries.iter().flat_map(|folder| {
                    ["dict_snowball.so", "plpgsql.so"].map(|name| folder.join(name))
                });
                paths(&config, &["--sharedir"])
                    .into_iter()
                    .chain(libraries)
                    .collect()
            }
            _ => Vec::new(),
        };
        let used = used
            .into_iter()
            .filter(|it| it.is_absolute() && it.exists());
        std::iter::once(file).chain(used).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_said_with_its_package() {
        let program = Program::of("quell-no-such-program", "nothing");
        let missing = program.missing().unwrap();
        assert!(missing.contains("apt-get install nothing"), "{missing}");
        assert_eq!(Program::of("sh", "dash").missing(), None);
    }

    #[test]
    fn the_newest_version_of_a_program_counts() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["9", "15", "16", "old"] {
            std::fs::create_dir_all(folder.path().join(version).join("bin")).unwrap();
        }
        for file in ["9/bin/sh", "15/bin/sh", "old/bin/sh", "16/other"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let program = Program {
            versions: Some(folder.path().to_string_lossy().into_owned().leak()),
            ..Program::of("sh", "dash")
        };
        assert_eq!(program.find().unwrap(), folder.path().join("15/bin/sh"));
        let none = Program {
            versions: Some("/quell-no-such-folder"),
            ..program
        };
        assert!(none.find().unwrap().ends_with("bin/sh"));
    }
}
