//! Rules: tenants that are found on the host, one for each unit, container, machine or pod, without a table
//! for each.

use super::schema::of_rules;
use super::table::{self, Keys, Table};
use super::tenant::check_name;
use super::{ConfigError, TenantClass, TenantKind, TenantSpec};
use crate::TenantName;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// One `[[tenants]]` table of `quell.toml`: each thing of a kind that the host has is a tenant of its own.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields, transform = of_rules)]
pub struct TenantRule {
    /// The things that are tenants.
    #[serde(flatten)]
    pub finds: Finds,
    /// The service that each of the tenants is owed. Its name is a template, see [`TenantRule::template`]; an
    /// empty one stands for the default of the source.
    #[serde(flatten)]
    pub spec: TenantSpec,
    /// Whether the rule says the tenants' class; where it does not, the source does.
    #[serde(skip)]
    pub says_class: bool,
}

/// The things of a host that a rule makes tenants.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Finds {
    /// The kind of things: the source that names them.
    pub each: Each,
    /// A glob that the thing's name matches; not given: all of the kind. `*` does not cross `/`, `**` does.
    #[serde(rename = "match")]
    pub matches: Option<String>,
    /// For some labels of the thing, a glob that the label's value matches; a label that the thing has not is
    /// empty. What is below a user's slice is only found where `user` is among them: its owner may have given
    /// it any name.
    #[schemars(default)]
    pub labels: BTreeMap<String, String>,
}

/// A source of tenants: the things of a host that it names.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Each {
    /// systemd's services and scopes, those of users' own managers too.
    #[default]
    Unit,
    /// cgroups of which the path matches, each with all below it.
    Cgroup,
    /// Containers of docker, podman, containerd, CRI-O, LXC, Incus and systemd-nspawn.
    Container,
    /// Virtual machines of QEMU (with libvirt or without), Cloud Hypervisor, Firecracker and crosvm.
    Vm,
    /// Kubernetes' pods, as the kubelet makes their cgroups.
    Pod,
}

impl Each {
    /// All sources, each once.
    pub const ALL: [Each; 5] = [
        Each::Unit,
        Each::Cgroup,
        Each::Container,
        Each::Vm,
        Each::Pod,
    ];

    /// The source's name, as the configuration spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Each::Unit => "unit",
            Each::Cgroup => "cgroup",
            Each::Container => "container",
            Each::Vm => "vm",
            Each::Pod => "pod",
        }
    }

    /// The labels that the source gives its tenants. The first is what a tenant is named by unless the rule
    /// has a template.
    pub const fn labels(self) -> &'static [&'static str] {
        match self {
            Each::Unit => &["unit", "slice", "user"],
            Each::Cgroup => &["cgroup", "path", "user"],
            Each::Container => &["name", "runtime", "id", "user"],
            Each::Vm => &["name", "vmm", "uuid", "user"],
            Each::Pod => &["uid", "qos", "user"],
        }
    }

    /// The kind of the tenants that the source finds.
    pub const fn kind(self) -> TenantKind {
        match self {
            Each::Unit | Each::Cgroup => TenantKind::Process,
            Each::Container | Each::Pod => TenantKind::Container,
            Each::Vm => TenantKind::Vm,
        }
    }
}

/// A part of a name's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamePart {
    /// Text as it stands.
    Text(String),
    /// The value of this label.
    Label(String),
    /// What the wildcard of this number in `match` stands for, from 1.
    Wildcard(usize),
}

impl TenantRule {
    /// A rule for all things of a kind, with the default of every other key.
    pub fn all(each: Each) -> TenantRule {
        TenantRule {
            finds: Finds {
                each,
                ..Finds::default()
            },
            ..TenantRule::default()
        }
    }

    /// The parts of the tenants' names: text, labels of the source in braces (`{unit}`), and what the
    /// wildcards of `match` stand for (`{1}`).
    ///
    /// # Errors
    /// A brace is not closed, or what stands in braces is neither a label of the source nor a number from 1;
    /// the error is a message.
    pub fn template(&self) -> Result<Vec<NamePart>, String> {
        let labels = self.finds.each.labels();
        let mut rest = self.spec.name.as_str();
        if rest.is_empty() {
            return Ok(vec![NamePart::Label(labels[0].to_string())]);
        }
        let mut parts = Vec::new();
        while let Some((text, after)) = rest.split_once('{') {
            let (inner, after) = after
                .split_once('}')
                .ok_or_else(|| format!("`{{{after}` has no closing brace"))?;
            if !text.is_empty() {
                parts.push(NamePart::Text(text.to_string()));
            }
            parts.push(match inner.parse::<usize>() {
                Ok(number) if number > 0 => NamePart::Wildcard(number),
                _ if labels.contains(&inner) => NamePart::Label(inner.to_string()),
                _ => {
                    let known: Vec<String> = labels.iter().map(|it| format!("`{{{it}}}`")).collect();
                    return Err(format!(
                        "`{{{inner}}}` is neither the number of a wildcard of `match` nor one of {}",
                        known.join(", ")
                    ));
                }
            });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(NamePart::Text(rest.to_string()));
        }
        Ok(parts)
    }

    /// What a tenant that the rule found is owed; `class` is what its source says of it.
    pub fn spec_of(&self, name: &TenantName, class: TenantClass) -> TenantSpec {
        TenantSpec {
            name: name.to_string(),
            kind: self.finds.each.kind(),
            class: match self.says_class {
                true => self.spec.class,
                false => class,
            },
            ..self.spec.clone()
        }
    }

    /// Checks a rule; `key` is the rule's key (`tenants[2]`).
    ///
    /// # Errors
    /// A key of the rule has an invalid value, or keys contradict one another.
    pub fn check(&self, file: &Path, key: &str) -> Result<(), ConfigError> {
        let error = |field: &str, message: String| {
            Err(ConfigError::at(file, format!("{key}.{field}"), message))
        };
        let each = self.finds.each;
        let parts = match self.template() {
            Ok(parts) => parts,
            Err(message) => return error("name", message),
        };
        let varies = parts.iter().any(|it| !matches!(it, NamePart::Text(_)));
        if !varies {
            let message = format!(
                "`{}` would be the name of all the rule's tenants; give a label in braces, such as `{{{}}}`",
                self.spec.name.escape_debug(),
                each.labels()[0]
            );
            return error("name", message);
        }
        for part in &parts {
            if let NamePart::Text(text) = part {
                check_name(&text.replace('/', "-"), file, key)?;
            }
        }
        if each == Each::Cgroup && self.finds.matches.is_none() {
            let message = "needs `match`, a glob of cgroup paths such as `\"qemu.slice/*.scope\"`";
            return error("each", message.to_string());
        }
        for label in self.finds.labels.keys() {
            if !each.labels().contains(&label.as_str()) {
                let message = format!(
                    "is no label of `each = \"{}\"`; there are: {}",
                    each.as_str(),
                    each.labels().join(", ")
                );
                return error(&format!("labels.{label}"), message);
            }
        }
        // What the keys demand of a tenant, whatever its name.
        TenantSpec {
            name: "found".to_string(),
            ..self.spec.clone()
        }
        .check(file, key)
    }
}

impl Table for TenantRule {
    fn fields<'de, D: Deserializer<'de>>(&mut self, keys: &mut Keys<D>) -> Result<(), D::Error> {
        keys.required("each", &mut self.finds.each)?;
        keys.optional("match", &mut self.finds.matches)?;
        keys.optional("labels", &mut self.finds.labels)?;
        keys.optional("name", &mut self.spec.name)?;
        let says_class = &mut self.says_class;
        let class = |value: D| {
            *says_class = true;
            TenantClass::deserialize(value)
        };
        keys.read_by(class, "class", &mut self.spec.class)?;
        self.spec.terms(keys)
    }
}

impl<'de> Deserialize<'de> for TenantRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        table::read(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AgentFile;

    fn rule(text: &str) -> Result<TenantRule, String> {
        let text = format!("[[tenants]]\n{text}");
        let file = AgentFile::parse(Path::new("q"), &text).map_err(|e| e.to_string())?;
        Ok(file.rules[0].clone())
    }

    #[test]
    fn a_rule_reads_as_it_is_written() {
        let text = "each = \"pod\"\nmatch = \"*\"\nlabels = { qos = \"burstable\" }\nname = \"pod-{uid}\"\n\
                    class = \"batch\"\nweight = 50\n";
        let rule = rule(text).unwrap();
        assert_eq!(rule.finds.each, Each::Pod);
        assert_eq!(rule.finds.matches.as_deref(), Some("*"));
        assert_eq!(rule.finds.labels["qos"], "burstable");
        let name = TenantName::from("pod-7");
        let spec = rule.spec_of(&name, TenantClass::Latency);
        assert_eq!(
            (spec.name.as_str(), spec.class),
            ("pod-7", TenantClass::Batch)
        );
        assert_eq!((spec.weight().0, spec.kind), (50, TenantKind::Container));
    }

    #[test]
    fn without_a_class_the_source_says_it() {
        let rule = rule("each = \"pod\"\n").unwrap();
        let name = TenantName::from("x");
        for class in [TenantClass::Latency, TenantClass::Batch] {
            assert_eq!(rule.spec_of(&name, class).class, class);
        }
    }

    #[test]
    fn a_name_has_text_labels_and_wildcards() {
        let parts = |name: &str| {
            let mut rule = TenantRule::all(Each::Unit);
            rule.spec.name = name.to_string();
            rule.template()
        };
        assert_eq!(parts("").unwrap(), [NamePart::Label("unit".into())]);
        let expected = [
            NamePart::Text("a-".into()),
            NamePart::Label("slice".into()),
            NamePart::Wildcard(2),
            NamePart::Text(".x".into()),
        ];
        assert_eq!(parts("a-{slice}{2}.x").unwrap(), expected);
        for (name, message) in [
            ("{unit", "no closing brace"),
            ("{0}", "neither the number"),
            ("{pod}", "`{unit}`, `{slice}`, `{user}`"),
        ] {
            assert!(parts(name).unwrap_err().contains(message), "{name}");
        }
    }

    #[test]
    fn operators_words_for_mechanisms_are_taken_too() {
        let policy = |words: &str| {
            let text = format!("[agent]\npolicy = [{words}]\n");
            AgentFile::parse(Path::new("q"), &text).map(|it| it.agent.mechanisms)
        };
        let words = policy(r#""latency", "share", "promises", "vm-pools""#).unwrap();
        assert_eq!(words, crate::config::Mechanism::ALL);
        let twice = policy(r#""latency", "asymmetry""#).unwrap_err().to_string();
        assert!(twice.contains("names the same mechanism"), "{twice}");
    }

    #[test]
    fn a_wrong_rule_says_what_would_be_right() {
        for (text, expected) in [
            ("each = \"unti\"\n", "did you mean `unit`?"),
            ("match = \"*\"\n", "missing field `each`"),
            ("each = \"cgroup\"\n", "`tenants[0].each`: needs `match`"),
            ("each = \"unit\"\nname = \"web\"\n", "such as `{unit}`"),
            ("each = \"unit\"\nname = \"a b{unit}\"\n", "must be 1 to 64"),
            (
                "each = \"unit\"\nlabels = { qos = \"x\" }\n",
                "is no label of",
            ),
            ("each = \"unit\"\nweight = 0\n", "outside 1 to 10000"),
            ("each = \"unit\"\npid = 3\n", "unknown field `pid`"),
            (
                "each = \"vm\"\ncriticality = \"low\"\nperiod_ms = 10\nbudget_ms = 1\n",
                "needs `criticality` in agent.policy",
            ),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
