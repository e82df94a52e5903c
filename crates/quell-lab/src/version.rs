//! Versions of QEMU.

use std::fmt;

/// A version of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// The oldest version that the lab uses. Before it QEMU handed each virtual CPU whole tick periods under
    /// icount, so latencies came out three times too high.
    pub const LEAST: Version = Version(8, 1, 0);

    /// Reads a version from what `--version` prints.
    pub(crate) fn parse(text: &str) -> Option<Version> {
        let words = text.strip_prefix("QEMU emulator version ")?;
        let number = words
            .split(|c: char| c != '.' && !c.is_ascii_digit())
            .next()?;
        let mut parts = number.split('.').map(|part| part.parse().ok());
        Some(Version(
            parts.next()??,
            parts.next()??,
            parts.next().flatten().unwrap_or(0),
        ))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let parse = Version::parse;
        assert_eq!(
            parse("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\n"),
            Some(Version(10, 0, 2))
        );
        assert_eq!(
            parse("QEMU emulator version 9.2.50\n"),
            Some(Version(9, 2, 50))
        );
        assert_eq!(parse("QEMU emulator version 8.1\n"), Some(Version(8, 1, 0)));
        assert_eq!(parse("something else"), None);
        assert!(Version(7, 2, 19) < Version::LEAST && Version(10, 0, 0) > Version::LEAST);
    }
}
