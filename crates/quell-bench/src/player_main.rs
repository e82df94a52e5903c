//! `quell player` by itself, for this crate's tests and examples: `quell-player player SPEC`.

fn main() -> anyhow::Result<()> {
    quell_bench::workload::player::main(std::env::args_os().skip(2).collect())
}
