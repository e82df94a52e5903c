//! The CPUs to which the parts of a virtual machine are pinned, where a manager of virtual machines (libvirt)
//! keeps such pins: the affinities of its threads are what the manager made of the pins, with cpusets around
//! the threads that would refuse other CPUs.
//!
//! This module has the data only: which part has which CPUs, and the text of that in the journal. `guests`
//! keeps the pins that libvirt reported; `act::libvirt_pins` decides which pins to change, and gives the
//! originals back.

use quell_model::{CpuId, CpuSet};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A part of a virtual machine that is pinned separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The virtual CPU of that number.
    Vcpu(u32),
    /// All threads that are neither a virtual CPU nor an iothread.
    Emulator,
    /// An iothread, by the number that its manager gives it.
    Iothread(u32),
}

/// The CPUs to which each part is pinned; a part without pins of its own has those of all CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pins(BTreeMap<Part, CpuSet>);

impl Pins {
    /// The pins of a part, if it has any.
    pub fn get(&self, part: Part) -> Option<&CpuSet> {
        self.0.get(&part)
    }

    /// Sets the pins of a part.
    pub fn set(&mut self, part: Part, cpus: CpuSet) {
        self.0.insert(part, cpus);
    }

    /// All parts with their pins, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Part, &CpuSet)> {
        self.0.iter().map(|(part, cpus)| (*part, cpus))
    }

    /// The pins of those parts that `keep` accepts.
    #[must_use]
    pub fn only(&self, keep: impl Fn(Part) -> bool) -> Pins {
        let parts = self.iter().filter(|(part, _)| keep(*part));
        parts.map(|(part, cpus)| (part, cpus.clone())).collect()
    }

    /// Whether there is no part.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The wanted pins that differ from those that hold and may be changed: where the part is as in one of
/// `expected`. If other pins hold, another program decided.
pub fn to_change<'a>(
    now: &'a Pins,
    expected: &'a [Pins],
    wanted: &'a Pins,
) -> impl Iterator<Item = (Part, &'a CpuSet)> {
    wanted.iter().filter(|(part, cpus)| {
        let held = now.get(*part);
        let left = expected.iter().any(|it| it.get(*part) == held);
        held.is_some_and(|held| held != *cpus) && left
    })
}

impl FromIterator<(Part, CpuSet)> for Pins {
    fn from_iter<I: IntoIterator<Item = (Part, CpuSet)>>(all: I) -> Pins {
        Pins(all.into_iter().collect())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Vcpu(number) => write!(f, "vcpu{number}"),
            Part::Emulator => f.write_str("emulator"),
            Part::Iothread(number) => write!(f, "iothread{number}"),
        }
    }
}

impl FromStr for Part {
    type Err = ();

    fn from_str(text: &str) -> Result<Part, ()> {
        let numbered = |kind: &str| text.strip_prefix(kind)?.parse().ok();
        match (numbered("vcpu"), numbered("iothread")) {
            (Some(number), _) => Ok(Part::Vcpu(number)),
            (_, Some(number)) => Ok(Part::Iothread(number)),
            _ if text == "emulator" => Ok(Part::Emulator),
            _ => Err(()),
        }
    }
}

/// Writes the pins in one word, as a journal has them: `vcpu0=0-3/emulator=4`.
impl fmt::Display for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (part, cpus)) in self.iter().enumerate() {
            let before = if at == 0 { "" } else { "/" };
            write!(f, "{before}{part}={cpus}")?;
        }
        Ok(())
    }
}

impl FromStr for Pins {
    type Err = ();

    fn from_str(text: &str) -> Result<Pins, ()> {
        let part = |text: &str| {
            let (part, cpus) = text.split_once('=').ok_or(())?;
            Ok((part.parse()?, cpus.parse().map_err(|_| ())?))
        };
        text.split('/').map(part).collect()
    }
}

/// A map of CPUs of `bytes` bytes, lowest bit first.
pub(super) fn to_map(cpus: &CpuSet, bytes: usize) -> Vec<u8> {
    let mut map = vec![0; bytes];
    for cpu in cpus.iter() {
        if let Some(byte) = map.get_mut(cpu.0 as usize / 8) {
            *byte |= 1 << (cpu.0 % 8);
        }
    }
    map
}

/// The CPUs of a map of CPUs.
pub(super) fn from_map(map: &[u8]) -> CpuSet {
    let bits = (0..map.len() * 8).filter(|bit| map[bit / 8] >> (bit % 8) & 1 == 1);
    bits.map(|bit| CpuId(bit as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words() {
        let text = "vcpu0=0-3/vcpu1=2/emulator=4/iothread7=0,5";
        let pins: Pins = text.parse().unwrap();
        assert_eq!(pins.to_string(), text);
        assert_eq!(pins.get(Part::Iothread(7)), Some(&"0,5".parse().unwrap()));
        for wrong in [
            "",
            "vcpu0",
            "vcpu=1",
            "vcpu-1=0",
            "emulator=x",
            "x=0",
            "vcpu0=0/",
        ] {
            assert!(wrong.parse::<Pins>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_somebody_else_pinned_is_left() {
        let pins = |text: &str| text.parse::<Pins>().unwrap();
        let expected = [
            pins("vcpu0=0/vcpu1=1/emulator=0-1"),
            pins("vcpu0=2/vcpu1=1"),
        ];
        let wanted = pins("vcpu0=3/vcpu1=1/vcpu2=3/emulator=3");
        for (now, changed) in [
            ("vcpu0=0/vcpu1=1/emulator=0-1", "vcpu0=3/emulator=3"),
            // One part was changed already.
            ("vcpu0=2/vcpu1=1/emulator=0-1", "vcpu0=3/emulator=3"),
            ("vcpu0=3/vcpu1=1/emulator=3", ""),
            // Another program pinned a part.
            ("vcpu0=1/vcpu1=0/emulator=0", ""),
            // A part that is not known, and a part that does not exist.
            ("vcpu2=0", ""),
        ] {
            let now = pins(now);
            let changes: Pins = to_change(&now, &expected, &wanted)
                .map(|(part, cpus)| (part, cpus.clone()))
                .collect();
            assert_eq!(changes.to_string(), changed, "{now}");
        }
    }

    proptest! {
        #[test]
        fn maps_and_words_lead_back(cpus in prop::collection::btree_set(0..300_u32, 1..9), number: u32) {
            let cpus: CpuSet = cpus.into_iter().map(CpuId).collect();
            prop_assert_eq!(&from_map(&to_map(&cpus, 38)), &cpus);
            let pins: Pins = [Part::Vcpu(number), Part::Emulator].into_iter().map(|it| (it, cpus.clone())).collect();
            prop_assert_eq!(pins.to_string().parse::<Pins>(), Ok(pins));
        }
    }
}
