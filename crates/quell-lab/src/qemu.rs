//! QEMU: the program, its version, and how to start it from unpacked packages.

use crate::error::LabError;
use crate::version::Version;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

const PROGRAM: &str = "qemu-system-x86_64";

/// A QEMU that can be started.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// The program's version.
    pub version: Version,
    root: Option<PathBuf>,
}

impl Qemu {
    /// The QEMU that `$QUELL_LAB_QEMU` names, else the machine's own where that is new enough.
    pub(crate) fn of_machine() -> Result<Option<Qemu>, LabError> {
        if let Some(named) = env::var_os("QUELL_LAB_QEMU").filter(|value| !value.is_empty()) {
            let qemu = Qemu::probe(named.into(), None)?;
            if qemu.version < Version::LEAST {
                return Err(LabError::QemuTooOld {
                    program: qemu.program,
                    version: qemu.version,
                });
            }
            return Ok(Some(qemu));
        }
        let Some(program) = find_program(PROGRAM) else {
            return Ok(None);
        };
        // A QEMU that does not print its version is as good as none.
        let own = Qemu::probe(program, None).ok();
        Ok(own.filter(|own| own.version >= Version::LEAST))
    }

    /// The QEMU among unpacked packages.
    pub(crate) fn in_root(root: &Path) -> Result<Qemu, LabError> {
        Qemu::probe(root.join("usr/bin").join(PROGRAM), Some(root.to_path_buf()))
    }

    fn probe(program: PathBuf, root: Option<PathBuf>) -> Result<Qemu, LabError> {
        // The program is started in other folders, so a relative path would not lead there.
        let program = match program.is_relative() && program.components().count() > 1 {
            true => program.canonicalize().map_err(LabError::io(&program))?,
            false => program,
        };
        let mut qemu = Qemu {
            program,
            version: Version::LEAST,
            root,
        };
        let output = qemu.command().arg("--version").output();
        let output = output.map_err(|source: io::Error| LabError::Tool {
            program: qemu.program.display().to_string(),
            package: "qemu-system-x86",
            source,
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(version) = Version::parse(&text) else {
            return Err(LabError::Program {
                program: qemu.program,
                problem: format!(
                    "does not say its version: {text}{}",
                    String::from_utf8_lossy(&output.stderr)
                ),
            });
        };
        qemu.version = version;
        Ok(qemu)
    }

    /// The folder of its unpacked packages, where QEMU is not installed.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// The command that starts QEMU, still without a machine's arguments.
    pub fn command(&self) -> Command {
        let Some(root) = &self.root else {
            return Command::new(&self.program);
        };
        // The packages' own dynamic loader and C library: the machine's may be older.
        let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(root.join("usr/lib/x86_64-linux-gnu"));
        command.arg(&self.program);
        for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(root.join(data));
        }
        // Otherwise QEMU would look for its modules beside the installed program.
        command.env(
            "QEMU_MODULE_DIR",
            root.join("usr/lib/x86_64-linux-gnu/qemu"),
        );
        command
    }
}

/// A program on `PATH`, or in a folder of daemons.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let mut path = env::var_os("PATH").unwrap_or_default();
    path.push(OsString::from(":/usr/local/sbin:/usr/sbin:/sbin"));
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| {
            nix::unistd::access(program, nix::unistd::AccessFlags::X_OK).is_ok()
                && program.is_file()
        })
}
