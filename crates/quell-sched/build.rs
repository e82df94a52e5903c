//! Compiles the scheduler for the kernel, and its policy arithmetic natively.

include!("../quell-bpf/compile.rs");

fn main() {
    println!("cargo:rerun-if-changed=src/policy");
    compile_bpf("src/bpf/quell.bpf.c", "quell.bpf.o");
    cc::Build::new()
        .file("src/policy/native.c")
        .std("c11")
        .warnings_into_errors(true)
        .extra_warnings(true)
        .flag_if_supported("-Wno-unused-function")
        .compile("quell_policy");
}
