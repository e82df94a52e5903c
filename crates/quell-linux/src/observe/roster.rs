//! The observed tenants, each in a place of its own.
//!
//! A place's number is the number that the monitor has for the tenant. The configuration's tables have the
//! first places, for good. A tenant that a rule found has a place as long as it has processes. A place that
//! was left rests before another tenant gets it, because the kernel may still charge waits to the tenant that
//! left. Tenants that find no place share the last one, [`OTHERS`], so that no number of tenants turns
//! anything off.

use super::selector::TenantIndex;
use quell_model::config::{self, AgentTenant, TenantSpec};
use quell_model::{Labels, TenantName};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How long a place rests, in ns.
const REST_NS: u64 = 1_000_000_000;

/// The name of the tenant of all that finds no place.
pub(crate) const OTHERS: &str = "others";

/// A tenant that is observed.
#[derive(Debug, Clone)]
pub(crate) struct Tenant {
    pub(crate) name: TenantName,
    pub(crate) spec: Arc<TenantSpec>,
    pub(crate) selectors: Arc<config::Selectors>,
    pub(crate) labels: Arc<Labels>,
    /// The rule that found the tenant, and the thing that the tenant is; `None` of a table.
    found: Option<(usize, String)>,
}

impl Tenant {
    /// The rule that found the tenant; `None` of a table.
    pub(crate) fn rule(&self) -> Option<usize> {
        self.found.as_ref().map(|(rule, _)| *rule)
    }

    /// The cgroup of the thing that a rule found, in the hierarchy that names things; `None` of a table, and
    /// of a virtual machine.
    pub(crate) fn thing_cgroup(&self) -> Option<&str> {
        let thing = self.found.as_ref().map(|(_, thing)| &**thing);
        thing.filter(|it| it.starts_with('/'))
    }
}

/// The tenants, by place.
#[derive(Debug)]
pub(crate) struct Roster {
    places: Vec<Option<Tenant>>,
    /// The most places, the one for [`OTHERS`] included.
    limit: usize,
    by_name: BTreeMap<TenantName, TenantIndex>,
    by_thing: BTreeMap<(usize, String), TenantIndex>,
    others: Option<TenantIndex>,
    /// Places that were left, with the time from which on each may be used again.
    resting: VecDeque<(u64, TenantIndex)>,
    /// Places that got another tenant since the last call of [`Roster::take_reused`].
    reused: Vec<TenantIndex>,
    now_ns: u64,
}

impl Roster {
    /// The tenants of the configuration's tables; `limit` places at most, tables included.
    pub(crate) fn of(tables: &[AgentTenant], limit: usize) -> Roster {
        let mut roster = Roster {
            places: Vec::new(),
            limit,
            by_name: BTreeMap::new(),
            by_thing: BTreeMap::new(),
            others: None,
            resting: VecDeque::new(),
            reused: Vec::new(),
            now_ns: 0,
        };
        for table in tables {
            roster.put(Tenant {
                name: table.spec.name.as_str().into(),
                spec: Arc::new(table.spec.clone()),
                selectors: Arc::new(table.selectors.clone()),
                labels: Arc::default(),
                found: None,
            });
        }
        roster
    }

    /// How many places there are, those without a tenant included.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn tenant(&self, place: TenantIndex) -> Option<&Tenant> {
        self.places.get(place)?.as_ref()
    }

    pub(crate) fn name(&self, place: TenantIndex) -> Option<&TenantName> {
        self.tenant(place).map(|it| &it.name)
    }

    /// The place of the tenant of this name.
    pub(crate) fn place_of(&self, name: &TenantName) -> Option<TenantIndex> {
        self.by_name.get(name).copied()
    }

    /// The places that have a tenant, ascending by the tenants' names.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = TenantIndex> + '_ {
        self.by_name.values().copied()
    }

    /// The place of a thing that a rule finds, if it is a tenant already.
    pub(crate) fn found(&self, rule: usize, thing: &str) -> Option<TenantIndex> {
        let key = (rule, thing.to_string());
        self.by_thing.get(&key).copied()
    }

    /// A place for a thing that a rule found and that is no tenant yet; `None`: the tables have taken all. If
    /// the name is another tenant's, a number is added to it. `spec` gets the name.
    pub(crate) fn enter(
        &mut self,
        rule: usize,
        thing: &str,
        name: &str,
        labels: Labels,
        spec: impl FnOnce(&TenantName) -> TenantSpec,
    ) -> Option<TenantIndex> {
        let rested = self.resting.front().is_some_and(|it| it.0 <= self.now_ns);
        if !rested && self.places.len() + 1 >= self.limit {
            return self.others();
        }
        let name = self.unused(name);
        let key = (rule, thing.to_string());
        let place = self.put(Tenant {
            spec: Arc::new(spec(&name)),
            selectors: Arc::default(),
            labels: Arc::new(labels),
            found: Some(key.clone()),
            name,
        });
        self.by_thing.insert(key, place);
        Some(place)
    }

    /// The place of all that finds no place of its own.
    fn others(&mut self) -> Option<TenantIndex> {
        if self.others.is_some() || self.places.len() >= self.limit {
            return self.others;
        }
        let name = self.unused(OTHERS);
        tracing::warn!(
            limit = self.limit,
            "more tenants than can be told apart: the rest is one tenant, `{name}`"
        );
        let place = self.put(Tenant {
            spec: Arc::new(TenantSpec::named(&name.0)),
            selectors: Arc::default(),
            labels: Arc::new(Labels::from([("source".to_string(), OTHERS.to_string())])),
            found: None,
            name,
        });
        self.others = Some(place);
        self.others
    }

    /// Puts a tenant into a place that has rested, or into a new one.
    fn put(&mut self, tenant: Tenant) -> TenantIndex {
        let name = tenant.name.clone();
        let place = match self.resting.front() {
            Some(&(from, place)) if from <= self.now_ns => {
                self.resting.pop_front();
                self.reused.push(place);
                self.places[place] = Some(tenant);
                place
            }
            _ => {
                self.places.push(Some(tenant));
                self.places.len() - 1
            }
        };
        self.by_name.insert(name, place);
        place
    }

    /// This name, or it with the least number that makes it no other tenant's.
    fn unused(&self, name: &str) -> TenantName {
        let plain = TenantName::from(name);
        if !self.by_name.contains_key(&plain) {
            return plain;
        }
        let numbered = (2..).map(|n: u32| TenantName::from(format!("{name}~{n}").as_str()));
        let mut free = numbered.filter(|it| !self.by_name.contains_key(it));
        free.next().unwrap_or(plain) // there are more numbers than places
    }

    /// Lets a tenant that a rule found go; a table's tenant stays. Returns whether it went.
    pub(crate) fn leave(&mut self, place: TenantIndex) -> bool {
        let Some(Some(tenant)) = self.places.get_mut(place) else {
            return false;
        };
        let Some(key) = tenant.found.take() else {
            return false;
        };
        let name = tenant.name.clone();
        self.places[place] = None;
        self.by_thing.remove(&key);
        self.by_name.remove(&name);
        self.resting.push_back((self.now_ns + REST_NS, place));
        true
    }

    /// Says what time it is, by any clock that does not go back.
    pub(crate) fn goes_on(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// The places that got another tenant since the last call.
    pub(crate) fn take_reused(&mut self) -> Vec<TenantIndex> {
        std::mem::take(&mut self.reused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn roster(tables: &[&str], limit: usize) -> Roster {
        let tables: Vec<AgentTenant> = tables.iter().map(|it| AgentTenant::named(it)).collect();
        Roster::of(&tables, limit)
    }

    fn enter(roster: &mut Roster, thing: &str, name: &str) -> TenantIndex {
        match roster.found(0, thing) {
            Some(place) => place,
            None => {
                let spec = |name: &TenantName| TenantSpec::named(&name.0);
                let place = roster.enter(0, thing, name, Labels::default(), spec);
                place.expect("there are fewer tables than places")
            }
        }
    }

    fn names(roster: &Roster) -> Vec<String> {
        let names = roster.by_name().filter_map(|it| roster.name(it));
        names.map(ToString::to_string).collect()
    }

    #[test]
    fn tables_have_the_first_places_and_things_those_that_follow() {
        let mut roster = roster(&["b", "a"], 10);
        assert_eq!(enter(&mut roster, "x", "web"), 2);
        assert_eq!(
            enter(&mut roster, "y", "web"),
            3,
            "another thing of that name"
        );
        assert_eq!(enter(&mut roster, "x", "web"), 2, "the same thing");
        assert_eq!(names(&roster), ["a", "b", "web", "web~2"]);
        assert!(!roster.leave(0), "a table stays");
        assert!(roster.leave(2));
        assert!(!roster.leave(2));
        assert_eq!(names(&roster), ["a", "b", "web~2"]);
    }

    #[test]
    fn a_place_rests_before_it_is_used_again() {
        let mut roster = roster(&[], 10);
        assert_eq!(enter(&mut roster, "x", "x"), 0);
        roster.leave(0);
        assert_eq!(enter(&mut roster, "y", "y"), 1);
        roster.goes_on(REST_NS - 1);
        assert_eq!(enter(&mut roster, "z", "z"), 2);
        assert!(roster.take_reused().is_empty());
        roster.goes_on(REST_NS);
        assert_eq!(enter(&mut roster, "zz", "zz"), 0);
        assert_eq!(roster.take_reused(), [0]);
        assert_eq!(roster.places(), 3);
    }

    #[test]
    fn where_tables_have_all_places_rules_find_nothing() {
        let mut roster = roster(&["a", "b"], 2);
        let spec = |name: &TenantName| TenantSpec::named(&name.0);
        assert_eq!(roster.enter(0, "x", "x", Labels::default(), spec), None);
    }

    #[test]
    fn what_finds_no_place_is_one_tenant() {
        let mut roster = roster(&["others"], 3);
        assert_eq!(enter(&mut roster, "x", "x"), 1);
        assert_eq!(enter(&mut roster, "y", "y"), 2);
        assert_eq!(enter(&mut roster, "z", "z"), 2);
        assert_eq!(names(&roster), ["others", "others~2", "x"]);
        assert!(!roster.leave(2), "it stays, as other processes may need it");
    }

    proptest! {
        /// Whatever comes and goes, no two tenants have a place or a name in common, none is forgotten, and
        /// no more places are used than there may be.
        #[test]
        fn each_tenant_has_one_place_and_one_name(
            steps in prop::collection::vec((0usize..12, 0usize..4, any::<bool>()), 0..80),
            limit in 2usize..12,
        ) {
            let mut roster = roster(&["t"], limit);
            let mut there: BTreeMap<String, TenantIndex> = BTreeMap::new();
            let mut now_ns = 0;
            for (thing, name, comes) in steps {
                let thing = thing.to_string();
                if comes {
                    let place = enter(&mut roster, &thing, &format!("n{name}"));
                    if Some(place) != roster.others {
                        there.insert(thing, place);
                    }
                } else if let Some(place) = there.remove(&thing) {
                    prop_assert!(roster.leave(place));
                }
                now_ns += REST_NS / 7;
                roster.goes_on(now_ns);
                prop_assert!(roster.places() <= limit.max(2));
                let places: std::collections::BTreeSet<_> = there.values().collect();
                prop_assert_eq!(places.len(), there.len());
                prop_assert!(there.iter().all(|(thing, place)| roster.found(0, thing) == Some(*place)));
                let expected = 1 + there.len() + usize::from(roster.others.is_some());
                prop_assert_eq!(roster.by_name().count(), expected);
                let at = |place| roster.name(place).and_then(|name| roster.place_of(name));
                prop_assert!(roster.by_name().all(|place| at(place) == Some(place)));
            }
        }
    }
}
