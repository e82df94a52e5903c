//! Compiles the BPF programs: the monitor's and the recorder's.

include!("../quell-bpf/compile.rs");

fn main() {
    compile_bpf("src/bpf/monitor.bpf.c", "monitor.bpf.o");
    compile_bpf("src/bpf/record.bpf.c", "record.bpf.o");
}
