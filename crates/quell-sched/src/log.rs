//! What libbpf prints while the scheduler loads, for error messages.

use libbpf_rs::{PrintCallback, PrintLevel};
use std::sync::Mutex;

/// Captures libbpf's warnings until dropped.
pub(crate) struct Log {
    previous: Option<(PrintLevel, PrintCallback)>,
}

static LOG: Mutex<String> = Mutex::new(String::new());
const LOG_BYTES: usize = 8192;

impl Log {
    pub(crate) fn capture() -> Log {
        with_log(String::clear);
        Log {
            previous: libbpf_rs::set_print(Some((PrintLevel::Warn, print))),
        }
    }

    /// The end of it, after a line break; empty where nothing was printed.
    pub(crate) fn tail(&self) -> String {
        let mut text = String::new();
        with_log(|log| {
            if !log.trim().is_empty() {
                text = format!("\n{}", log.trim());
            }
        });
        text
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        libbpf_rs::set_print(self.previous.take());
    }
}

fn print(_: PrintLevel, text: String) {
    with_log(|log| {
        log.push_str(&text);
        if log.len() > LOG_BYTES {
            let mut cut = log.len() - LOG_BYTES;
            while !log.is_char_boundary(cut) {
                cut += 1;
            }
            log.drain(..cut);
        }
    });
}

fn with_log(act: impl FnOnce(&mut String)) {
    if let Ok(mut log) = LOG.lock() {
        act(&mut log);
    }
}
