//! The promise to a tenant's vCPUs: a budget in every period, and its criticality.

use super::parse::check_range;
use super::schema::within;
use super::{ConfigError, TenantSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::Path;

/// The allowed numbers of vCPUs.
pub(super) const VCPUS: RangeInclusive<u32> = 1..=1024;
/// The allowed periods of servers, in ms.
pub(super) const PERIOD_MS: RangeInclusive<f64> = ms(Server::SHORTEST_NS)..=ms(Server::LONGEST_NS);
/// The budgets that some period allows, in ms.
pub(super) const BUDGET_MS: RangeInclusive<f64> = ms(Server::LEAST_NS)..=ms(Server::LONGEST_NS);
// The values that `[criticality]` takes.
const RESERVE_PERCENT: RangeInclusive<f64> = 1.0..=50.0;
const OVERHEAD_US: RangeInclusive<f64> = 0.0..=1000.0;
const TEMPERATURE: RangeInclusive<u32> = 0..=1000;

const fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The criticality of a server: which servers a CPU serves when it cannot serve all (Akita, section 3).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Criticality {
    /// Served as promised while no server of high criticality on the CPU needs its worst-case budget.
    Low,
    /// Served as promised whatever other servers do.
    High,
}

/// A periodic server: for one vCPU of a tenant, or for all of a tenant's threads on one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// The server's criticality.
    pub criticality: Criticality,
    /// The period after which the budget is replenished, in ns; also the deadline of the budget, from
    /// the period's beginning.
    pub period_ns: u64,
    /// The CPU time that the server usually needs in a period, in ns (the paper's optimistic budget).
    pub budget_ns: u64,
    /// The CPU time that the server needs in the worst case, in ns; `budget_ns` unless it is of high
    /// criticality (the paper's pessimistic budget).
    pub pessimistic_ns: u64,
}

impl Server {
    /// The shortest period, in ns: with a shorter one, switches cost more than they serve.
    pub const SHORTEST_NS: u64 = 1_000_000;
    /// The longest period, in ns: with a longer one, a wait is an outage.
    pub const LONGEST_NS: u64 = 4_000_000_000;
    /// The least budget, in ns.
    pub const LEAST_NS: u64 = 100_000;

    /// The part of a CPU that the server usually needs.
    pub fn utilization(&self) -> f64 {
        self.budget_ns as f64 / self.period_ns as f64
    }

    /// The part of a CPU that the server needs in the worst case.
    pub fn pessimistic_utilization(&self) -> f64 {
        self.pessimistic_ns as f64 / self.period_ns as f64
    }
}

impl TenantSpec {
    /// The server of each of the tenant's vCPUs; `None`: the tenant has a weight and no promise. The
    /// tenant must be checked.
    pub fn server(&self) -> Option<Server> {
        let ns = |ms: f64| (ms * 1e6).round() as u64;
        let budget_ns = ns(self.budget_ms?);
        Some(Server {
            criticality: self.criticality?,
            period_ns: ns(self.period_ms?),
            budget_ns,
            pessimistic_ns: self.pessimistic_budget_ms.map_or(budget_ns, ns),
        })
    }

    /// Checks the keys of the promise; `key` is the tenant's key.
    pub(super) fn check_server(&self, file: &Path, key: &str) -> Result<(), ConfigError> {
        let error = |field: &str, message: String| {
            Err(ConfigError::at(file, format!("{key}.{field}"), message))
        };
        if let Some(vcpus) = self.vcpus {
            check_range(file, format!("{key}.vcpus"), vcpus, &VCPUS)?;
        }
        let Some(criticality) = self.criticality else {
            let given = [
                ("period_ms", self.period_ms),
                ("budget_ms", self.budget_ms),
                ("pessimistic_budget_ms", self.pessimistic_budget_ms),
            ];
            return match given.into_iter().find(|(_, value)| value.is_some()) {
                Some((field, _)) => error(
                    field,
                    "needs `criticality = \"high\"` or \"low\" beside it".to_string(),
                ),
                None => Ok(()),
            };
        };
        let (Some(period), Some(budget)) = (self.period_ms, self.budget_ms) else {
            let missing = match self.period_ms {
                None => "period_ms",
                Some(_) => "budget_ms",
            };
            return error(
                missing,
                "is missing; a tenant with a criticality has a budget in every period".to_string(),
            );
        };
        check_range(file, format!("{key}.period_ms"), period, &PERIOD_MS)?;
        let within = |field: &str, budget: f64| {
            // NaN is in no range.
            let least = BUDGET_MS.start();
            if !(*least..).contains(&budget) {
                return error(field, format!("{budget} is less than {least}"));
            }
            if budget > period {
                return error(field, format!("{budget} is more than the period, {period}"));
            }
            Ok(())
        };
        within("budget_ms", budget)?;
        match (criticality, self.pessimistic_budget_ms) {
            (Criticality::Low, Some(_)) => error(
                "pessimistic_budget_ms",
                "is for criticality = \"high\": a low one's worst case is not provided for"
                    .to_string(),
            ),
            (Criticality::Low, None) => Ok(()),
            (Criticality::High, None) => error(
                "pessimistic_budget_ms",
                "is missing; give what the tenant needs at the most, `budget_ms` where that is the same"
                    .to_string(),
            ),
            (Criticality::High, Some(pessimistic)) => {
                within("pessimistic_budget_ms", pessimistic)?;
                if pessimistic < budget {
                    let message = format!("{pessimistic} is less than budget_ms, {budget}");
                    return error("pessimistic_budget_ms", message);
                }
                Ok(())
            }
        }
    }
}

/// The `[criticality]` table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CriticalitySettings {
    /// The admission test.
    pub test: AdmissionTest,
    /// The part of every CPU that is kept for threads without a promise (the best-effort server), in
    /// percent, 1 to 50 (ours; as the kernel keeps 5 for threads below the real-time classes).
    #[schemars(transform = within(RESERVE_PERCENT))]
    pub reserve_percent: f64,
    /// The CPU time that switching to a server and back takes in each of its periods, in µs, 0 to 1000
    /// (ours). For a server of high criticality it counts for each part of the budget, where there is
    /// room for that.
    #[schemars(transform = within(OVERHEAD_US))]
    pub overhead_us: f64,
    /// For how many periods a CPU stays in HI mode, where it serves only high criticality, after a
    /// server needed more than it usually does, 0 to 1000 (Akita, section 3.3, which gives no number).
    #[schemars(transform = within(TEMPERATURE))]
    pub temperature: u32,
}

impl Default for CriticalitySettings {
    fn default() -> Self {
        CriticalitySettings {
            test: AdmissionTest::EdfVd,
            reserve_percent: 5.0,
            overhead_us: 20.0,
            temperature: 2,
        }
    }
}

impl CriticalitySettings {
    /// Checks the values' ranges.
    ///
    /// # Errors
    /// A value is out of its range.
    pub fn check(&self, file: &Path) -> Result<(), ConfigError> {
        // Without a reserve, a CPU that is promised completely would serve no other thread, and the
        // kernel ends a scheduler that lets threads wait so long.
        let key = "criticality.reserve_percent";
        check_range(file, key, self.reserve_percent, &RESERVE_PERCENT)?;
        let key = "criticality.overhead_us";
        check_range(file, key, self.overhead_us, &OVERHEAD_US)?;
        let key = "criticality.temperature";
        check_range(file, key, self.temperature, &TEMPERATURE)
    }
}

/// A test of whether a CPU can keep the promises of all its servers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AdmissionTest {
    /// EDF-VD by utilizations (Akita's condition 6; Baruah et al., ECRTS 2012, theorem 2).
    #[default]
    EdfVd,
    /// EDF-VD by demand over every interval (Ekberg and Yi, ECRTS 2012): accepts all that `edf-vd`
    /// accepts, and more. It assumes servers that do not sleep before they have used their budgets,
    /// so a set that it alone accepts is not promised to servers that do sleep.
    Demand,
    /// EDF, with worst-case budgets.
    Edf,
    /// Rate-monotonic by utilization (Liu and Layland, 1973), with worst-case budgets.
    Rm,
    /// Rate-monotonic by response times (Joseph and Pandya, 1986), with worst-case budgets.
    RmExact,
}

impl AdmissionTest {
    /// All admission tests.
    pub const ALL: [AdmissionTest; 5] = [
        AdmissionTest::EdfVd,
        AdmissionTest::Demand,
        AdmissionTest::Edf,
        AdmissionTest::Rm,
        AdmissionTest::RmExact,
    ];

    /// The test's name, as the configuration spells it.
    pub fn name(self) -> &'static str {
        match self {
            AdmissionTest::EdfVd => "edf-vd",
            AdmissionTest::Demand => "demand",
            AdmissionTest::Edf => "edf",
            AdmissionTest::Rm => "rm",
            AdmissionTest::RmExact => "rm-exact",
        }
    }
}

impl std::str::FromStr for AdmissionTest {
    type Err = String;

    fn from_str(name: &str) -> Result<AdmissionTest, String> {
        let named = AdmissionTest::ALL.into_iter().find(|it| it.name() == name);
        named.ok_or_else(|| {
            format!(
                "`{name}` is none of {}",
                AdmissionTest::ALL.map(AdmissionTest::name).join(", ")
            )
        })
    }
}

impl std::fmt::Display for AdmissionTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
