//! Log messages go to stderr, as text for people or as JSON for machines.

use crate::cli::{LogFormat, LogLevel};
use std::io::IsTerminal;
use tracing::Level;
use tracing_subscriber::fmt;

/// Sends warnings and errors to stderr from now on, for a command that is no service.
pub fn init_warnings() {
    fmt()
        .with_max_level(Level::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
}

/// Sends messages of this level and above to stderr from now on.
pub fn init(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let base = || fmt().with_max_level(level).with_writer(std::io::stderr);
    // The systemd journal adds times of its own.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    match format {
        LogFormat::Json => base().json().init(),
        LogFormat::Text if journal => base()
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .init(),
        LogFormat::Text => {
            base()
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .init();
        }
    }
}
