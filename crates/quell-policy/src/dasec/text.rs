//! Figures in the sentences of reasons. In a busy period most threads have a reason, so they are
//! written without floating point and without a string of their own.

use quell_model::Weight;
use std::fmt::{Display, Formatter, Result};

/// A time in ns, written in ms with as many digits as operators read.
#[derive(Clone, Copy)]
pub(super) struct Millis(pub u64);

impl Display for Millis {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let rounded = |unit: u64| self.0 / unit + u64::from(self.0 % unit >= unit / 2);
        match self.0 {
            10_000_000.. => write!(f, "{}.{} ms", rounded(100_000) / 10, rounded(100_000) % 10),
            1_000_000.. => write!(
                f,
                "{}.{:02} ms",
                rounded(10_000) / 100,
                rounded(10_000) % 100
            ),
            _ => write!(
                f,
                "{}.{:03} ms",
                rounded(1_000) / 1_000,
                rounded(1_000) % 1_000
            ),
        }
    }
}

/// A weight in the kernel's load weight, to a tenth.
#[derive(Clone, Copy)]
pub(super) struct Load(pub Weight);

impl Display for Load {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let tenths = (self.0.0 + 50) / 100;
        write!(f, "{}.{}", tenths / 10, tenths % 10)
    }
}

/// A count with its noun: `1 time`, `3 times`.
#[derive(Clone, Copy)]
pub(super) struct Counted(pub u64, pub &'static str);

impl Display for Counted {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Counted(count, noun) = self;
        write!(f, "{count} {noun}{}", if *count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_to_what_is_read() {
        for (ns, text) in [
            (0, "0.000 ms"),
            (99_500, "0.100 ms"),
            (999_999, "1.000 ms"),
            (2_704_999, "2.70 ms"),
            (2_705_000, "2.71 ms"),
            (79_950_000, "80.0 ms"),
        ] {
            assert_eq!(Millis(ns).to_string(), text);
        }
        assert_eq!(Load(Weight(1_126_449)).to_string(), "1126.4");
        assert_eq!(Counted(1, "time").to_string(), "1 time");
        assert_eq!(Counted(0, "time").to_string(), "0 times");
    }
}
