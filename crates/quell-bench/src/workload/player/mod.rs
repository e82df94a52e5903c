//! Plays the thread programs of one tenant on real threads, in a process of its own.

/// The hidden subcommand `quell player`; `args` are the arguments after it.
pub fn main(args: Vec<std::ffi::OsString>) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("not built yet")
}
