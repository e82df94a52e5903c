//! Tells the crates that depend on this one where the shared headers are.

use std::env;

fn main() {
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::metadata=include={folder}/include");
    println!("cargo::rerun-if-changed=build.rs");
}
