//! Embeds the repository's scenarios, so that `quell bench NAME` works wherever the program is.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    // Each folder, and the prefix of its scenarios' names, which most do not need.
    for (folder, prefix) in [
        ("../../scenarios", ""),
        ("../../scenarios/lab", ""),
        ("../../scenarios/groups", "groups/"),
        ("../../scenarios/ufo", "ufo/"),
    ] {
        println!("cargo::rerun-if-changed={folder}");
        // The crate without its repository has no built-in scenarios.
        if !Path::new(folder).exists() {
            continue;
        }
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "toml") {
                files.push((path.canonicalize()?, prefix));
            }
        }
    }
    files.sort();
    let mut code = String::from("&[\n");
    for (path, prefix) in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("{prefix}{name}");
        // The text, not the path: a build folder outlives a source tree that is moved.
        let text = fs::read_to_string(&path)?;
        // Writing to a string does not fail.
        let _ = writeln!(code, "    ({name:?}, {text:?}),");
    }
    code.push_str("]\n");
    let out = env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .unwrap_or_default();
    fs::write(out.join("scenarios.rs"), code)
}
