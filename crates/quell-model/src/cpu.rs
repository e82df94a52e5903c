//! CPUs, sets of them, and how they share caches and cores.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A logical CPU's number, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuId(pub u32);

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of CPUs. Its text form is the kernel's list format: `0-3,8`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuSet {
    /// Bit `c % 64` of word `c / 64`; no trailing zero words, so equal sets are equal values.
    words: Vec<u64>,
}

/// The largest CPU number a set accepts (the kernel's own limit is CONFIG_NR_CPUS <= 8192).
const MAX_CPU: u32 = 8191;

/// Why a CPU list could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no CPU list; write ranges such as `0-3,8`, CPUs up to 8191")]
pub struct ParseCpuSetError(pub String);

impl CpuSet {
    /// The empty set.
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// The CPUs `0..count`.
    pub fn first(count: u32) -> CpuSet {
        (0..count).map(CpuId).collect()
    }

    /// Adds a CPU. Numbers above 8191 are ignored: no kernel has them.
    pub fn insert(&mut self, cpu: CpuId) {
        if cpu.0 > MAX_CPU {
            return;
        }
        let word = cpu.0 as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu.0 % 64);
    }

    /// Removes a CPU.
    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.words.get_mut(cpu.0 as usize / 64) {
            *word &= !(1 << (cpu.0 % 64));
        }
        self.trim();
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words
            .get(cpu.0 as usize / 64)
            .is_some_and(|w| w >> (cpu.0 % 64) & 1 == 1)
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| CpuId(i as u32 * 64 + bit))
        })
    }

    /// Whether all CPUs of this set are in the other too.
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.intersection(other) == *self
    }

    /// The CPUs in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        let mut set = CpuSet {
            words: self
                .words
                .iter()
                .zip(&other.words)
                .map(|(a, b)| a & b)
                .collect(),
        };
        set.trim();
        set
    }

    /// The set as little-endian 64-bit words, as `sched_setaffinity` takes it.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The inverse of [`CpuSet::words`].
    pub fn from_words(words: &[u64]) -> CpuSet {
        let mut set = CpuSet {
            words: words.to_vec(),
        };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<T: IntoIterator<Item = CpuId>>(iter: T) -> Self {
        let mut set = CpuSet::new();
        for cpu in iter {
            set.insert(cpu);
        }
        set
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseCpuSetError(text.to_string());
        let number = |s: &str| {
            let s = s.trim();
            if !s.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            s.parse::<u32>()
                .ok()
                .filter(|&n| n <= MAX_CPU)
                .ok_or_else(bad)
        };
        let mut set = CpuSet::new();
        for part in text.trim().split(',').filter(|p| !p.trim().is_empty()) {
            let (low, high) = match part.split_once('-') {
                Some((low, high)) => (number(low)?, number(high)?),
                None => (number(part)?, number(part)?),
            };
            if low > high {
                return Err(bad());
            }
            for cpu in low..=high {
                set.insert(CpuId(cpu));
            }
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().map(|c| c.0).peekable();
        let mut text = String::new();
        while let Some(low) = cpus.next() {
            let mut high = low;
            while cpus.next_if_eq(&(high + 1)).is_some() {
                high += 1;
            }
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&low.to_string());
            if high > low {
                text.push('-');
                text.push_str(&high.to_string());
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// One logical CPU and what it shares with others: equal numbers mean the same core, cache or socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// The CPU's number.
    pub id: CpuId,
    /// Physical core, counted over the host (two hyperthreads of a core share it).
    pub core: u32,
    /// Last-level cache, counted over the host.
    pub llc: u32,
    /// Socket (physical package).
    pub socket: u32,
}

/// The host's online CPUs, ascending by id.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Topology {
    /// The online CPUs.
    pub cpus: Vec<Cpu>,
}

impl Topology {
    /// `count` CPUs on one socket with one last-level cache and no hyperthreads.
    pub fn flat(count: u32) -> Topology {
        let cpus = (0..count)
            .map(|n| Cpu {
                id: CpuId(n),
                core: n,
                llc: 0,
                socket: 0,
            })
            .collect();
        Topology { cpus }
    }

    /// `count` CPUs on one socket without hyperthreads, with a last-level cache for every `each` CPUs.
    /// `each` of 0 is 1.
    pub fn of_caches(count: u32, each: u32) -> Topology {
        let mut topology = Topology::flat(count);
        for cpu in &mut topology.cpus {
            cpu.llc = cpu.id.0 / each.max(1);
        }
        topology
    }

    /// The online CPUs as a set.
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().map(|c| c.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_format_round_trips() {
        for text in ["", "0", "0-3", "0-3,8", "1,3,5-6,63-65,128"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        assert_eq!("3,0-1,2\n".parse::<CpuSet>().unwrap().to_string(), "0-3");
    }

    #[test]
    fn bad_lists_are_errors() {
        for text in ["a", "3-1", "-1", "1-", "0-99999999", "+1", "1;2"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
    }

    #[test]
    fn equal_sets_are_equal_values() {
        let mut a = CpuSet::first(70);
        for cpu in 2..70 {
            a.remove(CpuId(cpu));
        }
        assert_eq!(a, CpuSet::first(2));
        assert_eq!(
            a.intersection(&"1-99".parse().unwrap()),
            "1".parse().unwrap()
        );
        assert_eq!(CpuSet::first(3).len(), 3);
    }
}
