//! Compiles the scheduler for the kernel; and natively, for the simulator, with its policy arithmetic for
//! tests. Writes the Rust side of what the scheduler shares with its loader.

include!("../quell-bpf/compile.rs");
include!("../quell-bpf/shared.rs");

/// What the loader shares with the programs; src/layout.rs includes the Rust side.
const SHARED: Shared = Shared {
    header: "src/bpf/groups.bpf.h",
    copied: &[
        "options",
        "cpu_ctx",
        "llc_ctx",
        "group",
        "server_ctx",
        "exit_record",
        "thread_setting",
        "server_setting",
        "tenant_setting",
    ],
    mapped: &["share_slot", "share_slot_hints"],
    constants: &[
        (
            "usize",
            &[
                "MAX_CPUS",
                "MAX_LLCS",
                "LLC_CPUS",
                "MAX_SERVERS",
                "MAX_SHARE_SLOTS",
            ],
        ),
        ("u16", &["OFFLINE", "NO_LLC"]),
        ("u32", &["GROUP_DEPTH", "SHARE_SLOT_ENDED", "WEIGHT_SHIFT"]),
        (
            "u64",
            &[
                "SHARE_RATE_ONE",
                "SHARE_RATE_MIN",
                "SHARE_BEHIND_MAX",
                "SHARE_AHEAD_MAX",
                "WEIGHT_ONE",
                "WEIGHT_MIN",
                "WEIGHT_MAX",
                "VCLOCK_START",
                "FAIR_SLICE",
                "FAIR_DEBT_MAX",
                "URGENCY_WORK_MAX",
                "URGENCY_AGE_MAX",
                "DEADLINE_BASE",
                "DEADLINE_LEAD_MAX",
                "DEADLINE_LIGHT_LEAD",
                "DEADLINE_SHARE_DELAY",
                "DEADLINE_BURST_MAX",
                "DEADLINE_BUSY_RATIO",
                "DEADLINE_BUSY_MAX",
            ],
        ),
        (
            "i64",
            &[
                "FAIR_WAKEUP_LAG_MAX",
                "FAIR_LIGHT_LAG",
                "FAIR_LAG_MAX",
                "FAIR_PINNED_LAG_MAX",
            ],
        ),
    ],
};

fn main() {
    println!("cargo:rerun-if-changed=src/policy");
    compile_bpf("src/bpf/quell.bpf.c", "quell.bpf.o");
    write_shared(&SHARED);
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
