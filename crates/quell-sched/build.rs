//! Compiles the scheduler for the kernel (clang 14 or newer; no kernel headers, no bpftool), and its
//! policy arithmetic natively.

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

const SOURCE: &str = "src/bpf/quell.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=src/policy");
    println!("cargo:rerun-if-env-changed=CLANG");
    let Some(out) = env::var_os("OUT_DIR") else {
        fail("cargo did not set OUT_DIR");
    };
    let object = PathBuf::from(out).join("quell.bpf.o");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    // v3: the compare-and-swap and fetching atomics of Linux 5.12.
    let result = libbpf_cargo::SkeletonBuilder::new()
        .source(Path::new(SOURCE))
        .obj(&object)
        .clang(&clang)
        .clang_args(["-mcpu=v3", "-Wall", "-Werror"])
        .build();
    if let Err(error) = result {
        fail(&format!(
            "compiling {SOURCE} with {}: {error:#}\nclang 14 or newer is needed (Debian: apt install clang)",
            Path::new(&clang).display()
        ));
    }
    cc::Build::new()
        .file("src/policy/native.c")
        .std("c11")
        .warnings_into_errors(true)
        .extra_warnings(true)
        .flag_if_supported("-Wno-unused-function")
        .compile("quell_policy");
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    exit(1);
}
