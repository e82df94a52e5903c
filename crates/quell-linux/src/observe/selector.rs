//! The tenant that a process belongs to.
//!
//! A process belongs to the first `[[tenant]]`, in the order of the configuration, of which any selector
//! matches; if there is none, to the thing that the first `[[tenants]]` rule that fits finds for it. Patterns
//! are compiled once; [`Selectors::needs`] says which of a process's files have
//! to be read at all, so that no file is read for a kind of selector that no tenant has.

use super::container_names::ContainerNames;
use super::error::SelectorError;
use super::qemu;
use super::sources::{self, Thing};
use globset::{Glob, GlobBuilder, GlobMatcher};
use quell_model::config::{AgentTenant, Each, NamePart, TenantRule, TenantSpec};
use quell_model::{TenantName, shown};
use regex::Regex;
use std::collections::BTreeMap;

/// A tenant's place in the roster; of a table its index in the configuration.
pub(crate) type TenantIndex = usize;

/// Checks every selector of a configuration without observing anything.
///
/// # Errors
/// The call fails with the first selector that is not a glob, regular expression or unit name.
pub fn check_selectors(tenants: &[AgentTenant], rules: &[TenantRule]) -> Result<(), SelectorError> {
    Selectors::new(tenants, rules).map(|_| ())
}

/// The compiled selectors of all tenants, and the rules.
pub(crate) struct Selectors {
    tenants: Vec<Compiled>,
    /// The first tenant whose `pid` selector names a process.
    by_pid: BTreeMap<u32, TenantIndex>,
    rules: Vec<Rule>,
    pub(crate) needs: Needs,
}

/// A compiled rule.
struct Rule {
    rule: TenantRule,
    matches: Option<Wildcards>,
    labels: Vec<(String, GlobMatcher)>,
    name: Vec<NamePart>,
}

/// A glob that tells what its `*` and `**` stand for.
struct Wildcards(regex::bytes::Regex);

/// The tenant of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The tenant of the table in this place.
    Table(TenantIndex),
    /// A thing that the rule of this number found.
    Found {
        rule: usize,
        name: String,
        thing: Thing,
    },
}

/// The files of a process that the selectors look at.
#[derive(Default, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) cgroup: bool,
    pub(crate) exe: bool,
    pub(crate) cmdline: bool,
    /// Arguments of programs that run virtual machines.
    pub(crate) vms: bool,
}

struct Compiled {
    cgroup: Option<GlobMatcher>,
    unit: Option<String>,
    exe: Option<GlobMatcher>,
    cmdline: Option<Regex>,
    libvirt: Option<GlobMatcher>,
}

/// The facts about a process that selectors look at.
#[derive(Default)]
pub(crate) struct Facts<'a> {
    /// The first process of the virtual machine that this process runs, if it runs one.
    pub(crate) leader: u32,
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
    pub(crate) fn new(
        specs: &[AgentTenant],
        rules: &[TenantRule],
    ) -> Result<Selectors, SelectorError> {
        let mut needs = Needs::default();
        let mut tenants = Vec::with_capacity(specs.len());
        let mut by_pid = BTreeMap::new();
        for (index, AgentTenant { selectors, .. }) in specs.iter().enumerate() {
            let error = |key: &str, value: &str, message: String| SelectorError {
                key: format!("tenant[{index}].{key}"),
                value: value.to_string(),
                message,
            };
            let glob = |key: &str, value: &Option<String>| {
                let Some(value) = value else { return Ok(None) };
                let below = value.trim_start_matches(if key == "cgroup" { "/" } else { "" });
                let glob = glob(below).map_err(|message| error(key, value, message))?;
                Ok(Some(glob.compile_matcher()))
            };
            for pid in &selectors.pid {
                by_pid.entry(*pid).or_insert(index);
            }
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
        let mut compiled = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let vms = rule.finds.each == Each::Vm;
            needs.exe |= vms;
            needs.vms |= vms;
            needs.cgroup |= !vms;
            compiled.push(Rule::of(index, rule)?);
        }
        Ok(Selectors {
            tenants,
            by_pid,
            rules: compiled,
            needs,
        })
    }

    /// How many tables there are.
    pub(crate) fn tables(&self) -> usize {
        self.tenants.len()
    }

    /// The source of what a rule finds.
    pub(crate) fn source(&self, rule: usize) -> Each {
        self.rules[rule].rule.finds.each
    }

    /// What a thing that a rule found is owed as a tenant of this name.
    pub(crate) fn spec_of(&self, rule: usize, name: &TenantName, thing: &Thing) -> TenantSpec {
        self.rules[rule].rule.spec_of(name, thing.class)
    }

    /// The first tenant whose `pid` selector names this process.
    pub(crate) fn by_pid(&self, pid: u32) -> Option<TenantIndex> {
        self.by_pid.get(&pid).copied()
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
    pub(crate) fn classify(&self, facts: &Facts<'_>, names: &mut ContainerNames) -> Option<Owner> {
        if let Some(table) = self.first(facts, 0..self.tenants.len()) {
            return Some(Owner::Table(table));
        }
        // It is not to be a unit until its machine is found.
        let exe = facts.exe.filter(|_| self.needs.vms);
        if exe.is_some_and(|exe| facts.cgroups.iter().any(|it| sources::becomes_vm(exe, it))) {
            return None;
        }
        let mut rules = self.rules.iter().enumerate();
        rules.find_map(|(rule, it)| {
            let (name, thing) = it.find(facts, names)?;
            Some(Owner::Found { rule, name, thing })
        })
    }
}

impl Rule {
    fn of(index: usize, rule: &TenantRule) -> Result<Rule, SelectorError> {
        let error = |key: &str, value: &str, message: String| SelectorError {
            key: format!("tenants[{index}].{key}"),
            value: value.to_string(),
            message,
        };
        let matches = rule.finds.matches.as_ref().map(|value| {
            let below = match rule.finds.each {
                Each::Cgroup => value.trim_start_matches('/'),
                _ => value,
            };
            let glob = glob(below).and_then(|it| Wildcards::of(&it));
            glob.map_err(|message| error("match", value, message))
        });
        let matches = matches.transpose()?;
        let name = rule.template();
        let name = name.map_err(|message| error("name", &rule.spec.name, message))?;
        let wildcards = matches.as_ref().map_or(0, Wildcards::count);
        for part in &name {
            if let NamePart::Wildcard(number) = part {
                if *number > wildcards {
                    let message =
                        format!("has `{{{number}}}`, but `match` has {wildcards} wildcards");
                    return Err(error("name", &rule.spec.name, message));
                }
            }
        }
        let labels = rule.finds.labels.iter().map(|(label, value)| {
            // An empty value is that of a label that the thing has not.
            let glob = glob_or_empty(value);
            let glob = glob.map_err(|message| error(&format!("labels.{label}"), value, message))?;
            Ok((label.clone(), glob.compile_matcher()))
        });
        Ok(Rule {
            labels: labels.collect::<Result<_, _>>()?,
            rule: rule.clone(),
            matches,
            name,
        })
    }

    /// The thing that the process belongs to, with its name as a tenant.
    fn find(&self, facts: &Facts<'_>, names: &mut ContainerNames) -> Option<(String, Thing)> {
        let mut thing = match self.rule.finds.each {
            Each::Vm => sources::vm(facts.leader, facts.exe?, facts.cmdline)?,
            each => facts.cgroups.iter().find_map(|path| match each {
                Each::Cgroup => sources::cgroup(path, |it| {
                    self.matches
                        .as_ref()
                        .is_some_and(|glob| glob.stand_for(it).is_some())
                }),
                Each::Unit => sources::unit(path),
                Each::Pod => sources::pod(path),
                Each::Container | Each::Vm => {
                    let mut container = sources::container(path)?;
                    let name = names.of(&mut container);
                    Some(container.named(name.as_deref()))
                }
            })?,
        };
        let user = facts.cgroups.iter().find_map(|path| sources::user_of(path));
        if let Some(user) = user {
            thing.labels.insert("user", user.to_string());
        }
        let mut wildcards = Vec::new();
        if let Some(glob) = &self.matches {
            wildcards = thing.names.iter().find_map(|it| glob.stand_for(it))?;
        }
        let asks = |label: &str| self.labels.iter().any(|it| it.0 == label);
        if user.is_some() && !asks("user") {
            return None;
        }
        let fits = self.labels.iter().all(|(label, glob)| {
            let value = thing.labels.get(label.as_str());
            glob.is_match(value.map_or("", |it| it))
        });
        if !fits {
            return None;
        }
        let parts = self.name.iter().map(|part| match part {
            NamePart::Text(text) => text.as_str(),
            NamePart::Label(label) => thing.labels.get(label.as_str()).map_or("", |it| it),
            NamePart::Wildcard(number) => wildcards.get(number - 1).map_or("", |it| it),
        });
        let mut name: String = parts.collect();
        if name.is_empty() {
            let first = thing.labels.get(self.rule.finds.each.labels()[0]);
            name = first.cloned().unwrap_or_default();
        }
        // The names of units, containers and machines are not always given by this host's operator.
        let labels = thing.labels.values_mut();
        labels.for_each(|it| *it = harmless(it));
        Some((harmless(&name), thing))
    }
}

impl Wildcards {
    fn of(glob: &Glob) -> Result<Wildcards, String> {
        // A literal asterisk or dot is escaped there, so that this can only be what `*` and `**` became.
        let text = glob
            .regex()
            .replace("[^/]*", "([^/]*)")
            .replace(".*", "(.*)");
        let regex = regex::bytes::Regex::new(&text).map_err(|e| format!("is no glob: {e}"))?;
        Ok(Wildcards(regex))
    }

    fn count(&self) -> usize {
        self.0.captures_len() - 1
    }

    /// What the wildcards stand for in a text; `None` where the glob does not match it.
    fn stand_for(&self, text: &str) -> Option<Vec<String>> {
        let found = self.0.captures(text.as_bytes())?;
        let all = found.iter().skip(1);
        let all = all.map(|it| it.map_or(&[][..], |it| it.as_bytes()));
        Some(
            all.map(|it| String::from_utf8_lossy(it).into_owned())
                .collect(),
        )
    }
}

/// The most characters of a tenant's name, and of a label's value.
const NAME_MOST: usize = 200;

/// A text from outside as a name: not longer than names are, and without what terminals obey.
fn harmless(text: &str) -> String {
    let cut: String = text.chars().take(NAME_MOST).collect();
    shown(&cut).chars().take(NAME_MOST).collect()
}

/// A glob of which `*` does not match `/`.
fn glob(text: &str) -> Result<Glob, String> {
    match text.is_empty() {
        true => Err("is empty and matches nothing".to_string()),
        false => glob_or_empty(text),
    }
}

fn glob_or_empty(text: &str) -> Result<Glob, String> {
    GlobBuilder::new(text)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|e| format!("is no glob: {}", e.kind()))
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
        let selectors = Selectors::new(&tenants(&[(key, value)]), &[]).unwrap();
        selectors
            .classify(facts, &mut ContainerNames::none())
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
        let selectors = Selectors::new(&list, &[]).unwrap();
        let classify = |facts: &Facts<'_>| {
            let owner = selectors.classify(facts, &mut ContainerNames::none());
            owner.map(|it| match it {
                Owner::Table(index) => index,
                Owner::Found { .. } => panic!("there are no rules"),
            })
        };
        assert_eq!(selectors.by_pid(7), Some(0));
        assert_eq!(selectors.by_pid(8), None);
        let mut facts = Facts {
            exe: Some(b"/bin/sh"),
            cmdline: b"sh\0sleep\0",
            ..Facts::default()
        };
        assert_eq!(classify(&facts), Some(1));
        facts.exe = Some(b"/bin/dash");
        assert_eq!(classify(&facts), Some(2));
        facts.cmdline = b"dash\0";
        assert_eq!(classify(&facts), Some(3));
        facts.lineage = Some(0);
        assert_eq!(classify(&facts), Some(0));
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
            let error = check_selectors(&tenants(&[("pid", "1"), (key, value)]), &[]).unwrap_err();
            let expected = (format!("tenant[1].{key}"), value);
            assert_eq!((error.key.clone(), error.value.as_str()), expected);
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    /// The first rule that fits finds the tenant of a process in this cgroup.
    fn found(rules: &[TenantRule], cgroup: &str) -> Option<String> {
        let selectors = Selectors::new(&[], rules).unwrap();
        let facts = Facts {
            cgroups: &[cgroup],
            ..Facts::default()
        };
        match selectors.classify(&facts, &mut ContainerNames::none())? {
            Owner::Found { rule, name, .. } => Some(format!("{rule}:{name}")),
            Owner::Table(_) => None,
        }
    }

    fn rule(each: Each, change: impl Fn(&mut TenantRule)) -> TenantRule {
        let mut rule = TenantRule::all(each);
        change(&mut rule);
        rule
    }

    #[test]
    fn the_first_rule_that_fits_names_the_tenant() {
        let matching = |each, glob: &str, name: &str| {
            rule(each, |it| {
                it.finds.matches = Some(glob.to_string());
                it.spec.name = name.to_string();
            })
        };
        let rules = [
            matching(Each::Cgroup, "/qemu.slice/*.scope", "vm-{1}"),
            matching(Each::Cgroup, "a/*/b/**", "{2}.{1}"),
            rule(Each::Unit, |it| {
                it.finds
                    .labels
                    .insert("slice".into(), "batch*.slice".into());
                it.spec.name = "{slice}/{unit}".into();
            }),
            matching(Each::Unit, "web-*", "{1}"),
            matching(Each::Unit, "*.service", ""),
        ];
        for (cgroup, expected) in [
            ("/qemu.slice/100.scope/emulator", Some("0:vm-100")),
            ("/qemu.slice/a/100.scope", None),
            ("/a/x/b/y/z", Some("1:y.x")),
            (
                "/batch.slice/job.service",
                Some("2:batch.slice/job.service"),
            ),
            ("/system.slice/web-1.service", Some("3:1.service")),
            ("/system.slice/db.service", Some("4:db.service")),
            ("/system.slice/run-1.scope", None),
            ("/", None),
        ] {
            assert_eq!(found(&rules, cgroup).as_deref(), expected, "{cgroup}");
        }
        assert_eq!(
            found(&rules, "/system.slice/a\u{1b}[31m.service").as_deref(),
            Some(r"4:a\x1b[31m.service"),
            "a name cannot carry a terminal's control characters"
        );
    }

    #[test]
    fn what_users_made_is_found_only_where_it_is_asked_for() {
        let user = "/user.slice/user-1000.slice/user@1000.service/app.slice/db.service";
        let of = |label: Option<&str>| {
            let rule = rule(Each::Unit, |it| {
                let label = label.map(|it| ("user".to_string(), it.to_string()));
                it.finds.labels.extend(label);
            });
            [user, "/system.slice/db.service"]
                .map(|it| found(std::slice::from_ref(&rule), it).is_some())
        };
        assert_eq!(of(None), [false, true]);
        assert_eq!(of(Some("*")), [true, true]);
        assert_eq!(of(Some("1000")), [true, false]);
        assert_eq!(of(Some("")), [false, true]);
    }

    #[test]
    fn names_are_never_empty_and_never_long() {
        let named = |name: &str, unit: &str| {
            let rule = rule(Each::Unit, |it| it.spec.name = name.to_string());
            found(&[rule], &format!("/{unit}")).unwrap()
        };
        assert_eq!(named("{slice}", "init.scope"), "0:init.scope");
        let long = format!("{}.scope", "\u{202e}x".repeat(500));
        assert_eq!(named("", &long).chars().count(), NAME_MOST + 2);
        assert!(!named("", &long).contains('\u{202e}'));
        let umlaut = rule(Each::Unit, |it| it.finds.matches = Some("é*".into()));
        assert!(found(&[umlaut], "/system.slice/éa.service").is_some());
    }

    #[test]
    fn a_machine_that_libvirt_starts_is_no_unit_before_it_is_a_machine() {
        let all = [Each::Vm, Each::Unit].map(TenantRule::all);
        let scope = r"/machine.slice/machine-qemu\x2d1\x2dweb.scope";
        let cmdline = b"/usr/bin/qemu-system-x86_64\0-name\0guest=web\0";
        let found = |rules: &[TenantRule], exe: &str, cgroup: &str| {
            let selectors = Selectors::new(&[], rules).unwrap();
            let facts = Facts {
                cgroups: &[cgroup],
                exe: Some(exe.as_bytes()),
                cmdline,
                ..Facts::default()
            };
            match selectors.classify(&facts, &mut ContainerNames::none())? {
                Owner::Found { name, .. } => Some(name),
                Owner::Table(_) => None,
            }
        };
        let unit = r"machine-qemu\x2d1\x2dweb.scope";
        for (rules, exe, cgroup, expected) in [
            (&all[..], "/usr/sbin/libvirtd", scope, None),
            (&all, "/usr/sbin/virtqemud", scope, None),
            (&all, "/usr/bin/qemu-system-x86_64", scope, Some("web")),
            (&all, "/usr/libexec/virtiofsd", scope, Some(unit)),
            (
                &all,
                "/usr/sbin/libvirtd",
                "/system.slice/libvirtd.service",
                Some("libvirtd.service"),
            ),
            // Where only units are asked for, the scope is one from the beginning.
            (&all[1..], "/usr/sbin/libvirtd", scope, Some(unit)),
        ] {
            assert_eq!(
                found(rules, exe, cgroup).as_deref(),
                expected,
                "{exe} in {cgroup}"
            );
        }
    }

    #[test]
    fn a_table_comes_before_every_rule() {
        let tables = tenants(&[("unit", "web")]);
        let selectors = Selectors::new(&tables, &[TenantRule::all(Each::Unit)]).unwrap();
        let facts = Facts {
            cgroups: &["/system.slice/web.service"],
            ..Facts::default()
        };
        let owner = selectors.classify(&facts, &mut ContainerNames::none());
        assert_eq!(owner, Some(Owner::Table(0)));
    }

    #[test]
    fn wrong_rules_name_key_and_value() {
        for (rule, key, message) in [
            (
                rule(Each::Unit, |it| it.finds.matches = Some("a[".into())),
                "match",
                "is no glob",
            ),
            (
                rule(Each::Unit, |it| it.finds.matches = Some("".into())),
                "match",
                "is empty",
            ),
            (
                rule(Each::Unit, |it| it.spec.name = "{1}".into()),
                "name",
                "`match` has 0 wildcards",
            ),
            (
                rule(Each::Pod, |it| {
                    drop(it.finds.labels.insert("qos".into(), "{a".into()))
                }),
                "labels.qos",
                "is no glob",
            ),
        ] {
            let error = check_selectors(&[], &[TenantRule::all(Each::Unit), rule]).unwrap_err();
            assert_eq!(error.key, format!("tenants[1].{key}"));
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_patterns_and_processes_never_panic(
            pattern: String, path: String, exe: Vec<u8>, cmdline: Vec<u8>,
        ) {
            let facts = Facts {
                leader: 1, lineage: None, cgroups: &[&path], exe: Some(&exe), cmdline: &cmdline,
            };
            let names = &mut ContainerNames::none();
            for key in ["cgroup", "unit", "exe", "cmdline", "libvirt"] {
                if let Ok(selectors) = Selectors::new(&tenants(&[(key, &pattern)]), &[]) {
                    selectors.classify(&facts, names);
                }
            }
            for each in Each::ALL {
                let mut rule = TenantRule::all(each);
                rule.finds.matches = Some(pattern.clone());
                if let Ok(selectors) = Selectors::new(&[], &[rule]) {
                    selectors.classify(&facts, names);
                }
            }
        }
    }
}
