//! Compiles the BPF programs of the monitor and the recorder. The monitor's are also compiled natively, for a
//! test of what they count.

include!("../quell-bpf/compile.rs");
include!("../quell-bpf/shared.rs");

/// What the monitor's programs share with their reader; src/observe/monitor/layout.rs includes the Rust side.
const SHARED: Shared = Shared {
    header: "src/bpf/monitor.bpf.c",
    copied: &["tid_page", "process_event", "tenant_occasions"],
    mapped: &["thread_slot", "cpu_log", "wait_row", "monitor_stats"],
    constants: &[
        ("u32", &["TIDS_PER_PAGE", "STATE_BITS"]),
        (
            "u64",
            &[
                "STATE_FREE",
                "STATE_FLUX",
                "STATE_ENDED",
                "STATE_RUNNING",
                "STATE_READY",
                "STATE_BLOCKED",
                "STATE_MASK",
            ],
        ),
        ("u8", &["HALT_STOPPED", "HALT_FROZEN"]),
        (
            "usize",
            &[
                "CAUSE_HOST",
                "CAUSE_IDLE",
                "CAUSE_BANDWIDTH",
                "CAUSE_STEAL",
                "CAUSE_UNKNOWN",
                "CAUSE_BITS",
            ],
        ),
        (
            "u32",
            &["PROCESS_CHANGED", "PROCESS_FORKED", "PROCESS_EXITED"],
        ),
    ],
};

fn main() {
    compile_bpf("src/bpf/monitor.bpf.c", "monitor.bpf.o");
    compile_bpf("src/bpf/record.bpf.c", "record.bpf.o");
    write_shared(&SHARED);
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
