// For build scripts, which include this file: compiles a BPF program (clang 14 or newer; no kernel headers,
// no bpftool) with the headers of this crate, which must be a dependency.

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

/// Compiles `source` into the output folder's file `object`; ends the build with a message if that fails.
fn compile_bpf(source: &str, object: &str) {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    compile(Path::new(source), object, &["-Wall", "-Werror"]);
}

/// As [`compile_bpf`], with these flags of clang.
fn compile(source: &Path, object: &str, flags: &[&str]) {
    let Ok(include) = env::var("DEP_QUELL_BPF_INCLUDE") else {
        fail("cargo did not say where quell-bpf's headers are");
    };
    println!("cargo:rerun-if-changed={include}");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    // v3: the compare-and-swap and fetching atomics of Linux 5.12.
    let result = libbpf_cargo::SkeletonBuilder::new()
        .source(source)
        .obj(out_dir().join(object))
        .clang(&clang)
        .clang_args(["-mcpu=v3", "-I", &include].iter().chain(flags))
        .build();
    if let Err(error) = result {
        fail(&format!(
            "compiling {} with {}: {error:#}\nclang 14 or newer is needed (Debian: apt install clang)",
            source.display(),
            Path::new(&clang).display()
        ));
    }
}

/// The folder for what the build script makes.
fn out_dir() -> PathBuf {
    let Some(folder) = env::var_os("OUT_DIR") else {
        fail("cargo did not say where to put the BPF object");
    };
    folder.into()
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    exit(1);
}
