//! The text that libbpf prints while programs load, for error messages.

use libbpf_rs::{PrintCallback, PrintLevel};
use std::sync::Mutex;

/// Captures libbpf's warnings, the verifier's among them, until dropped. Only one log captures at a time:
/// libbpf has one printer.
pub struct Log {
    previous: Option<(PrintLevel, PrintCallback)>,
}

static LOG: Mutex<String> = Mutex::new(String::new());
const LOG_BYTES: usize = 8192;

impl Log {
    /// Starts to capture, with an empty log.
    pub fn capture() -> Log {
        with_log(String::clear);
        Log {
            previous: libbpf_rs::set_print(Some((PrintLevel::Warn, print))),
        }
    }

    /// The end of the captured text, at most 8 KiB; empty where nothing was printed.
    pub fn tail(&self) -> String {
        let mut text = String::new();
        with_log(|log| text.push_str(log.trim()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_its_end() {
        let log = Log::capture();
        for i in 0..2000 {
            print(PrintLevel::Warn, format!("line {i} é\n"));
        }
        assert!(log.tail().ends_with("line 1999 é"));
        assert!(log.tail().len() <= LOG_BYTES);
    }
}
