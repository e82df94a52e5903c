//! Compiles the BPF monitor.

include!("../quell-bpf/compile.rs");

fn main() {
    compile_bpf("src/bpf/monitor.bpf.c", "monitor.bpf.o");
}
