//! Compiles the BPF programs of the monitor and the recorder. The monitor's are also compiled natively, for a
//! test of what they count.

include!("../quell-bpf/compile.rs");

fn main() {
    compile_bpf("src/bpf/monitor.bpf.c", "monitor.bpf.o");
    compile_bpf("src/bpf/record.bpf.c", "record.bpf.o");
    // Linked by observe/monitor/books.rs, which only tests have.
    cc::Build::new()
        .file("src/bpf/native/books.c")
        .include("src/bpf/native/include")
        .include(env::var("DEP_QUELL_BPF_INCLUDE").unwrap_or_default())
        .std("gnu11")
        .opt_level(1)
        .warnings_into_errors(true)
        .extra_warnings(false)
        .flag("-fno-strict-aliasing")
        .flag("-fvisibility=hidden")
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unused-variable")
        .flag_if_supported("-Wno-unknown-pragmas")
        .cargo_metadata(false)
        .compile("quell_books");
    let out = env::var("OUT_DIR").unwrap_or_default();
    println!("cargo:rustc-link-search=native={out}");
}
