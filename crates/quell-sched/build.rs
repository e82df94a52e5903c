//! Compiles the scheduler for the kernel; and natively, for the simulator, with its policy arithmetic for tests.

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
    println!("cargo:rerun-if-changed=src/native");
    let include = std::env::var("DEP_QUELL_BPF_INCLUDE").unwrap_or_default();
    cc::Build::new()
        .file("src/native/quell.c")
        .include("src/native/include")
        .include(include)
        .std("gnu11")
        // Always: the programs hold branches for other kernels, with functions that there are none of here.
        .opt_level(2)
        .warnings_into_errors(true)
        .extra_warnings(false)
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unused-variable")
        .flag_if_supported("-Wno-unknown-pragmas")
        .compile("quell_native");
}
