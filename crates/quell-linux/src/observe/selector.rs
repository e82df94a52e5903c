//! The tenant that a process belongs to.
//!
//! A process belongs to the first tenant, in the order of the configuration, of which any selector
//! matches. Patterns are compiled once; [`Selectors::needs`] says which of a process's files have
//! to be read at all, so that no file is read for a kind of selector that no tenant has.

use super::error::SelectorError;
use super::qemu;
use globset::{GlobBuilder, GlobMatcher};
use quell_model::config::AgentTenant;
use regex::Regex;

/// The index of a tenant in the configuration.
pub(crate) type TenantIndex = usize;

/// Checks every selector of a configuration without observing anything.
///
/// # Errors
/// The call fails with the first selector that is not a glob, regular expression or unit name.
pub fn check_selectors(tenants: &[AgentTenant]) -> Result<(), SelectorError> {
    Selectors::new(tenants).map(|_| ())
}

/// The compiled selectors of all tenants.
pub(crate) struct Selectors {
    tenants: Vec<Compiled>,
    pub(crate) needs: Needs,
}

/// The files of a process that the selectors look at.
#[derive(Default, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) cgroup: bool,
    pub(crate) exe: bool,
    pub(crate) cmdline: bool,
}

struct Compiled {
    pids: Vec<u32>,
    cgroup: Option<GlobMatcher>,
    unit: Option<String>,
    exe: Option<GlobMatcher>,
    cmdline: Option<Regex>,
    libvirt: Option<GlobMatcher>,
}

/// The facts about a process that selectors look at.
#[derive(Default)]
pub(crate) struct Facts<'a> {
    /// The first tenant whose `pid` selector names this process or an ancestor.
    pub(crate) lineage: Option<TenantIndex>,
    /// The cgroup paths of the process in the hierarchies that count, each starting with `/`.
    pub(crate) cgroups: &'a [&'a str],
    /// The path of the executable; `None` where it is not readable.
    pub(crate) exe: Option<&'a [u8]>,
    /// The NUL-separated arguments.
    pub(crate) cmdline: &'a [u8],
}

impl Selectors {
    pub(crate) fn new(specs: &[AgentTenant]) -> Result<Selectors, SelectorError> {
        let mut needs = Needs::default();
        let mut tenants = Vec::with_capacity(specs.len());
        for (index, AgentTenant { spec, selectors }) in specs.iter().enumerate() {
            let error = |key: &'static str, value: &str, message: String| SelectorError {
                tenant: spec.name.clone(),
                index,
                key,
                value: value.to_string(),
                message,
            };
            let glob = |key: &'static str, value: &Option<String>| {
                let Some(value) = value else { return Ok(None) };
                if value.is_empty() {
                    return Err(error(
                        key,
                        value,
                        "is empty and matches nothing".to_string(),
                    ));
                }
                GlobBuilder::new(value.trim_start_matches(if key == "cgroup" { "/" } else { "" }))
                    .literal_separator(true)
                    .backslash_escape(true)
                    .build()
                    .map(|glob| Some(glob.compile_matcher()))
                    .map_err(|e| error(key, value, format!("is no glob: {}", e.kind())))
            };
            let cmdline = match &selectors.cmdline {
                Some(text) => Some(Regex::new(text).map_err(|e| {
                    error("cmdline", text, format!("is no regular expression: {e}"))
                })?),
                None => None,
            };
            let unit = match &selectors.unit {
                Some(unit) if unit.is_empty() || unit.contains('/') => {
                    let message = "is no unit name; write it as `systemctl` shows it";
                    return Err(error("unit", unit, message.to_string()));
                }
                Some(unit) => Some(full_unit_name(unit)),
                None => None,
            };
            let compiled = Compiled {
                pids: selectors.pid.clone(),
                cgroup: glob("cgroup", &selectors.cgroup)?,
                unit,
                exe: glob("exe", &selectors.exe)?,
                cmdline,
                libvirt: glob("libvirt", &selectors.libvirt)?,
            };
            needs.cgroup |= compiled.cgroup.is_some() || compiled.unit.is_some();
            needs.exe |= compiled.exe.is_some() || compiled.libvirt.is_some();
            needs.cmdline |= compiled.cmdline.is_some() || compiled.libvirt.is_some();
            tenants.push(compiled);
        }
        Ok(Selectors { tenants, needs })
    }

    /// The first tenant whose `pid` selector names this process.
    pub(crate) fn by_pid(&self, pid: u32) -> Option<TenantIndex> {
        self.tenants.iter().position(|t| t.pids.contains(&pid))
    }

    /// The first of these tenants that a process matches, `tenants` ascending; with all tenants, the tenant
    /// that the process belongs to.
    pub(crate) fn first(
        &self,
        facts: &Facts<'_>,
        mut tenants: impl Iterator<Item = TenantIndex>,
    ) -> Option<TenantIndex> {
        // Several tenants may need either text, so each is made at most once.
        let cmdline = self.needs.cmdline.then(|| joined(facts.cmdline));
        let guest = match facts.exe {
            Some(exe) if self.needs.cmdline && qemu::is_qemu(exe) => {
                qemu::guest_name(facts.cmdline)
            }
            _ => None,
        };
        let exe = facts.exe.map(String::from_utf8_lossy);
        tenants.find(|&index| {
            let tenant = &self.tenants[index];
            facts.lineage == Some(index)
                || tenant.cgroup.as_ref().is_some_and(|glob| {
                    facts
                        .cgroups
                        .iter()
                        .any(|path| glob.is_match(path.trim_start_matches('/')))
                })
                || tenant.unit.as_ref().is_some_and(|unit| {
                    facts
                        .cgroups
                        .iter()
                        .any(|path| path.split('/').any(|part| part == unit))
                })
                || tenant.exe.as_ref().is_some_and(|glob| {
                    exe.as_deref().is_some_and(|path| {
                        glob.is_match(path)
                            || path
                                .rsplit('/')
                                .next()
                                .is_some_and(|name| glob.is_match(name))
                    })
                })
                || tenant.cmdline.as_ref().is_some_and(|regex| {
                    // A zombie or kernel thread has no arguments; `.*` must not match it.
                    cmdline
                        .as_deref()
                        .is_some_and(|text| !text.is_empty() && regex.is_match(text))
                })
                || tenant
                    .libvirt
                    .as_ref()
                    .is_some_and(|glob| guest.as_deref().is_some_and(|name| glob.is_match(name)))
        })
    }

    /// The tenant that a process belongs to.
    pub(crate) fn classify(&self, facts: &Facts<'_>) -> Option<TenantIndex> {
        self.first(facts, 0..self.tenants.len())
    }
}

/// The arguments joined by blanks.
fn joined(cmdline: &[u8]) -> String {
    let end = cmdline
        .iter()
        .rposition(|&b| b != 0)
        .map_or(0, |last| last + 1);
    String::from_utf8_lossy(&cmdline[..end]).replace('\0', " ")
}

/// systemd's unit types; a name that ends in none of them is a service.
const UNIT_TYPES: [&str; 11] = [
    ".service",
    ".scope",
    ".slice",
    ".socket",
    ".mount",
    ".automount",
    ".swap",
    ".target",
    ".timer",
    ".path",
    ".device",
];

fn full_unit_name(unit: &str) -> String {
    if UNIT_TYPES.iter().any(|t| unit.ends_with(t)) {
        unit.to_string()
    } else {
        format!("{unit}.service")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tenants `0`, `1`, ... with one selector each.
    fn tenants(list: &[(&str, &str)]) -> Vec<AgentTenant> {
        list.iter()
            .enumerate()
            .map(|(n, (key, value))| {
                let mut tenant = AgentTenant::named(&n.to_string());
                let selectors = &mut tenant.selectors;
                let value = value.to_string();
                match *key {
                    "pid" => selectors.pid = vec![value.parse().unwrap()],
                    "cgroup" => selectors.cgroup = Some(value),
                    "unit" => selectors.unit = Some(value),
                    "exe" => selectors.exe = Some(value),
                    "cmdline" => selectors.cmdline = Some(value),
                    _ => selectors.libvirt = Some(value),
                }
                tenant
            })
            .collect()
    }

    fn matches(key: &str, value: &str, facts: &Facts<'_>) -> bool {
        Selectors::new(&tenants(&[(key, value)]))
            .unwrap()
            .classify(facts)
            .is_some()
    }

    #[test]
    fn cgroup_globs_stop_at_slashes() {
        let pod = Facts {
            cgroups: &["/", "/kubepods.slice/burstable/pod7/c1"],
            ..Facts::default()
        };
        assert!(matches("cgroup", "kubepods.slice/*/pod*/*", &pod));
        assert!(matches("cgroup", "/kubepods.slice/**", &pod));
        assert!(matches("cgroup", "**/pod[0-9]/c?", &pod));
        assert!(matches("cgroup", "{docker,kubepods.slice}/**", &pod));
        assert!(!matches("cgroup", "kubepods.slice/*", &pod));
        assert!(!matches("cgroup", "pod7", &pod));
    }

    #[test]
    fn systemd_escapes_in_globs_are_written_with_two_backslashes() {
        let cgroups = [r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt"];
        let vm = Facts {
            cgroups: &cgroups,
            ..Facts::default()
        };
        assert!(matches(
            "cgroup",
            r"machine.slice/machine-qemu\\x2d*web.scope/**",
            &vm
        ));
        assert!(matches("unit", r"machine-qemu\x2d1\x2dweb.scope", &vm));
    }

    #[test]
    fn units_are_whole_components() {
        let path = ["/system.slice/memcached.service/worker"];
        let facts = Facts {
            cgroups: &path,
            ..Facts::default()
        };
        for unit in ["memcached", "memcached.service", "system.slice"] {
            assert!(matches("unit", unit, &facts), "{unit}");
        }
        for unit in ["memcache", "system", "memcached.scope"] {
            assert!(!matches("unit", unit, &facts), "{unit}");
        }
        let scope = Facts {
            cgroups: &["/user.slice/run-u1.scope"],
            ..Facts::default()
        };
        assert!(matches("unit", "run-u1.scope", &scope));
    }

    #[test]
    fn executables_by_path_and_by_name() {
        let facts = Facts {
            exe: Some(b"/usr/sbin/nginx"),
            ..Facts::default()
        };
        for glob in ["nginx", "/usr/sbin/nginx", "/usr/*/nginx", "ng*", "/usr/**"] {
            assert!(matches("exe", glob, &facts), "{glob}");
        }
        for glob in ["/usr/*", "ngin", "sbin/nginx"] {
            assert!(!matches("exe", glob, &facts), "{glob}");
        }
        assert!(
            !matches("exe", "**", &Facts::default()),
            "an unreadable executable matches nothing"
        );
    }

    #[test]
    fn command_lines_are_arguments_joined_by_blanks() {
        let facts = Facts {
            cmdline: b"python3\0-m\0http.server\x008080\0",
            ..Facts::default()
        };
        assert!(matches("cmdline", r"^python3 -m http\.server \d+$", &facts));
        assert!(matches("cmdline", "(?i)HTTP", &facts));
        assert!(!matches("cmdline", "^http", &facts));
        assert!(
            !matches("cmdline", ".*", &Facts::default()),
            "no arguments, no match"
        );
    }

    #[test]
    fn domains_only_of_qemu_processes() {
        let cmdline = b"qemu\0-name\0guest=web-1,debug-threads=on\0";
        let vm = Facts {
            exe: Some(b"/usr/bin/qemu-system-x86_64"),
            cmdline,
            ..Facts::default()
        };
        assert!(matches("libvirt", "web-*", &vm));
        assert!(!matches("libvirt", "db-*", &vm));
        let other = Facts {
            exe: Some(b"/usr/bin/less"),
            ..vm
        };
        assert!(!matches("libvirt", "web-*", &other));
    }

    #[test]
    fn the_first_matching_tenant_wins() {
        let list = tenants(&[
            ("pid", "7"),
            ("exe", "sh"),
            ("cmdline", "sleep"),
            ("exe", "*"),
        ]);
        let selectors = Selectors::new(&list).unwrap();
        assert_eq!(selectors.by_pid(7), Some(0));
        assert_eq!(selectors.by_pid(8), None);
        let mut facts = Facts {
            exe: Some(b"/bin/sh"),
            cmdline: b"sh\0sleep\0",
            ..Facts::default()
        };
        assert_eq!(selectors.classify(&facts), Some(1));
        facts.exe = Some(b"/bin/dash");
        assert_eq!(selectors.classify(&facts), Some(2));
        facts.cmdline = b"dash\0";
        assert_eq!(selectors.classify(&facts), Some(3));
        facts.lineage = Some(0);
        assert_eq!(selectors.classify(&facts), Some(0));
    }

    #[test]
    fn wrong_patterns_name_tenant_key_and_value() {
        let cases = [
            ("cgroup", "a[", "is no glob"),
            ("exe", "", "is empty"),
            ("libvirt", "{a", "is no glob"),
            ("cmdline", "a(", "is no regular expression"),
            ("unit", "a/b", "is no unit name"),
        ];
        for (key, value, message) in cases {
            let error = check_selectors(&tenants(&[("pid", "1"), (key, value)])).unwrap_err();
            assert_eq!(
                (error.index, error.key, error.value.as_str()),
                (1, key, value)
            );
            assert!(error.to_string().contains(message), "{error}");
            assert!(error.to_string().starts_with("tenant `1`"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_patterns_and_processes_never_panic(
            pattern: String, path: String, exe: Vec<u8>, cmdline: Vec<u8>,
        ) {
            let facts = Facts {
                lineage: None, cgroups: &[&path], exe: Some(&exe), cmdline: &cmdline,
            };
            for key in ["cgroup", "unit", "exe", "cmdline", "libvirt"] {
                if let Ok(selectors) = Selectors::new(&tenants(&[(key, &pattern)])) {
                    selectors.classify(&facts);
                }
            }
        }
    }
}
