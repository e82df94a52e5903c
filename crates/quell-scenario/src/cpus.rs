//! CPUs that threads may run on: `cpus = [0, 2]` or `cpus = "0-3,6"`.

use quell_model::config::ConfigError;
use quell_model::{CpuId, CpuSet, Topology};
use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};
use std::fmt;
use std::path::Path;

/// Reads CPU numbers or ranges.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<CpuSet>, D::Error> {
    struct CpusVisitor;
    impl<'de> Visitor<'de> for CpusVisitor {
        type Value = Option<CpuSet>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("numbers of CPUs such as [0, 2], or ranges such as \"0-3,6\"")
        }

        fn visit_unit<E>(self) -> Result<Option<CpuSet>, E> {
            Ok(None)
        }

        fn visit_none<E>(self) -> Result<Option<CpuSet>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Option<CpuSet>, D::Error> {
            inner.deserialize_any(self)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Option<CpuSet>, E> {
            text.parse().map(Some).map_err(E::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<CpuSet>, A::Error> {
            let mut set = CpuSet::new();
            while let Some(number) = list.next_element::<u32>()? {
                let cpu = CpuId(number);
                set.insert(cpu);
                if !set.contains(cpu) {
                    return Err(A::Error::custom(format!("{number} is outside 0 to 8191")));
                }
            }
            Ok(Some(set))
        }
    }
    deserializer.deserialize_any(CpusVisitor)
}

/// Checks that these CPUs exist, as far as the host is known; `key` is the key that lists them.
pub(crate) fn check(
    cpus: &CpuSet,
    host: Option<&Topology>,
    file: &Path,
    key: &str,
) -> Result<(), ConfigError> {
    let error = |message: String| Err(ConfigError::at(file, key, message));
    if cpus.is_empty() {
        return error("names no CPU; leave it out where all are allowed".to_string());
    }
    let Some(online) = host.map(Topology::online) else {
        return Ok(());
    };
    match cpus.iter().find(|&cpu| !online.contains(cpu)) {
        Some(cpu) => error(format!(
            "there is no CPU {cpu}: the [host] has CPUs {online}"
        )),
        None => Ok(()),
    }
}
