//! A small tree of C to build for real: without headers, so that a compiler and an assembler are all it
//! needs.

use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

/// The number of functions in each file.
const FUNCTIONS: u32 = 3;

/// Writes `files` files of C and a makefile that compiles each by itself; nothing for 0 files.
///
/// # Errors
/// Where a file cannot be written.
pub(super) fn write(folder: &Path, files: u32) -> anyhow::Result<()> {
    if files == 0 {
        return Ok(());
    }
    let put = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).with_context(|| file.display().to_string())
    };
    for number in 0..files {
        put(&format!("f{number}.c"), &source(number))?;
    }
    let objects: Vec<String> = (0..files).map(|number| format!("f{number}.o")).collect();
    let makefile = format!(
        "all: {}\n%.o: %.c\n\tgcc -O1 -ffreestanding -nostdinc -c -o $@ $<\n",
        objects.join(" ")
    );
    put("Makefile", &makefile)
}

/// A file of C: functions with a loop, a switch and a table each, so that a compiler has something to do.
fn source(number: u32) -> String {
    let mut text = String::new();
    for function in 0..FUNCTIONS {
        let (a, b) = (3 + number + function, 7 * number + 5 * function + 11);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "static const unsigned t{function}[4] = {{ {a}u, {b}u, {a}u * {b}u, {a}u + {b}u }};\n\
             unsigned g{number}_{function}(unsigned x, unsigned n)\n{{\n\
             \tfor (unsigned i = 0; i < n; i++) {{\n\
             \t\tswitch ((x + i) % 5) {{\n\
             \t\tcase 0: x += t{function}[i & 3]; break;\n\
             \t\tcase 1: x ^= x << {shift}; break;\n\
             \t\tcase 2: x = x * {a}u + i; break;\n\
             \t\tdefault: x -= t{function}[x & 3] >> 1;\n\
             \t\t}}\n\t}}\n\treturn x;\n}}\n",
            shift = 1 + function % 7,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_tree_is_built_without_headers() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 0).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        write(folder.path(), 2).unwrap();
        let mut make = Command::new("make");
        make.args(["-s", "-B", "-j", "2"])
            .current_dir(folder.path());
        let Ok(status) = make.status() else {
            quell_testkit::skip!(Apps, "there is no make here");
            return;
        };
        assert!(status.success());
        assert!(folder.path().join("f0.o").is_file() && folder.path().join("f1.o").is_file());
    }
}
