//! Real applications that a scenario runs as tenants.
//!
//! Each has the parameters that set the work of one request: scheduling hardly changes the response
//! time of a request of 20 µs, and it does change that of a request of one millisecond.

use crate::program::Count;
use quell_model::config::ConfigError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A real application run as a tenant: `app = { memcached = { threads = 2 } }` or
/// `[tenant.app.memcached]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum App {
    /// memcached; a request gets many keys at once.
    Memcached(Memcached),
    /// nginx; a request gets a document, compressed anew each time.
    Nginx(Nginx),
    /// redis-server; a request is one command of a mix.
    Redis(Redis),
    /// xz compressing an endless stream: batch work, in bytes.
    Xz(Xz),
}

/// Parameters of [`App::Memcached`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memcached {
    /// The number of worker threads.
    pub threads: Count,
    /// Memory for items, in MiB.
    pub memory_mb: u32,
    /// The number of keys stored.
    pub keys: u32,
    /// Size of each value, in bytes.
    pub value_bytes: u32,
    /// The number of keys that a request asks for: consecutive ones, the first drawn uniformly. At most
    /// `keys`.
    pub keys_per_request: u32,
}

/// Parameters of [`App::Nginx`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nginx {
    /// The number of worker processes.
    pub workers: Count,
    /// Size of the document, in KiB.
    pub document_kb: u32,
    /// Whether the document is compressed for each request.
    pub gzip: bool,
    /// Effort of the compression, 1 to 9.
    pub gzip_level: u32,
}

/// Parameters of [`App::Redis`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Redis {
    /// Memory for data, in MiB.
    pub memory_mb: u32,
    /// Keys of each type stored.
    pub keys: u32,
    /// Size of each string value and list element, in bytes.
    pub value_bytes: u32,
    /// Elements of each list and sorted set.
    pub elements: u32,
    /// Iterations of the loop that a script (`eval`) runs.
    pub script_turns: u32,
    /// The frequency of each command, relative to the others.
    pub mix: BTreeMap<RedisCommand, f64>,
}

/// A command of [`Redis::mix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedisCommand {
    /// GET of one value.
    Get,
    /// LRANGE of a whole list.
    Lrange,
    /// SORT ... ALPHA of a whole list.
    Sort,
    /// ZRANGE of a whole sorted set.
    Zrange,
    /// EVAL of a Lua loop.
    Eval,
}

/// Parameters of [`App::Xz`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Xz {
    /// The number of compressing threads.
    pub threads: Count,
    /// Effort of the compression, 0 to 9.
    pub level: u32,
}

impl Default for Memcached {
    fn default() -> Self {
        Memcached {
            threads: Count::Fixed(2),
            memory_mb: 64,
            keys: 10_000,
            value_bytes: 100,
            keys_per_request: 400,
        }
    }
}

impl Default for Nginx {
    fn default() -> Self {
        Nginx {
            workers: Count::Fixed(2),
            document_kb: 64,
            gzip: true,
            gzip_level: 1,
        }
    }
}

impl Default for Redis {
    fn default() -> Self {
        Redis {
            memory_mb: 64,
            keys: 16,
            value_bytes: 64,
            elements: 500,
            script_turns: 10_000,
            mix: BTreeMap::from([(RedisCommand::Sort, 1.0)]),
        }
    }
}

impl Default for Xz {
    fn default() -> Self {
        Xz {
            threads: Count::Cpus,
            level: 1,
        }
    }
}

impl App {
    /// The application's name in scenario files.
    pub fn name(&self) -> &'static str {
        match self {
            App::Memcached(_) => "memcached",
            App::Nginx(_) => "nginx",
            App::Redis(_) => "redis",
            App::Xz(_) => "xz",
        }
    }

    /// Whether the application takes requests; otherwise it does batch work.
    pub fn takes_requests(&self) -> bool {
        !matches!(self, App::Xz(_))
    }

    /// Checks ranges; `key` is the application's key (`tenant[2].app`).
    pub(crate) fn check(&self, file: &Path, key: &str) -> Result<(), ConfigError> {
        let error = |field: &str, message: String| {
            Err(ConfigError::at(
                file,
                format!("{key}.{}.{field}", self.name()),
                message,
            ))
        };
        let range = |field: &str, value: u32, low: u32, high: u32| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            error(field, format!("{value} is outside {low} to {high}"))
        };
        match self {
            App::Memcached(app) => {
                range("memory_mb", app.memory_mb, 8, 1 << 20)?;
                range("keys", app.keys, 1, 10_000_000)?;
                range("value_bytes", app.value_bytes, 1, 512 << 10)?;
                range(
                    "keys_per_request",
                    app.keys_per_request,
                    1,
                    app.keys.min(10_000),
                )?;
                // Memcached's own bookkeeping takes about 60 bytes for each item, and slabs round up.
                let needed = u64::from(app.keys) * (u64::from(app.value_bytes) + 60) * 5 / 4;
                if needed > u64::from(app.memory_mb) << 20 {
                    let message = format!(
                        "{} MiB do not hold {} values of {} bytes; {} would",
                        app.memory_mb,
                        app.keys,
                        app.value_bytes,
                        (needed >> 20) + 1
                    );
                    return error("memory_mb", message);
                }
                Ok(())
            }
            App::Nginx(app) => {
                range("document_kb", app.document_kb, 1, 64 << 10)?;
                range("gzip_level", app.gzip_level, 1, 9)
            }
            App::Redis(app) => {
                range("memory_mb", app.memory_mb, 8, 1 << 20)?;
                range("keys", app.keys, 1, 100_000)?;
                range("value_bytes", app.value_bytes, 8, 512 << 10)?;
                range("elements", app.elements, 1, 100_000)?;
                range("script_turns", app.script_turns, 1, 10_000_000)?;
                // The stored data, and the copy with which the load generator compares answers.
                let element = u64::from(app.value_bytes) + 64;
                let needed = u64::from(app.keys) * (2 * u64::from(app.elements) + 1) * element;
                if needed > u64::from(app.memory_mb) << 20 {
                    let message = format!(
                        "{} MiB do not hold {} lists and sorted sets of {} elements of {} bytes; {} would",
                        app.memory_mb,
                        app.keys,
                        app.elements,
                        app.value_bytes,
                        (needed >> 20) + 1
                    );
                    return error("memory_mb", message);
                }
                let sound = |share: &f64| share.is_finite() && *share >= 0.0;
                if !app.mix.values().all(sound) || app.mix.values().sum::<f64>() <= 0.0 {
                    let message =
                        "needs at least one command with a share above 0, such as { sort = 1 }";
                    return error("mix", message.to_string());
                }
                Ok(())
            }
            App::Xz(app) => range("level", app.level, 0, 9),
        }
    }
}
