//! The sides of a comparison, by the names that `--policy` takes.

use quell_model::config::Mechanism;
use std::fmt;
use std::str::FromStr;

/// A side that can be measured on a live host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The kernel's own scheduler, nothing of Quell's running.
    Default,
    /// The asymmetry mechanism alone, as the DASEC paper has it.
    Dasec,
    /// Every mechanism there is, composed. Today that is asymmetry alone.
    Quell,
}

/// Why a side's name is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SideError {
    /// Known, but of a mechanism or substrate that this version lacks.
    #[error("side `{0}` is not built yet ({1}); there are: {known}", known = known())]
    NotBuilt(String, &'static str),
    /// Not a side.
    #[error("`{0}` is no side{suggestion}; there are: {known}",
        suggestion = suggest(.0), known = known())]
    Unknown(String),
    /// Nothing to compare.
    #[error("name at least two sides, separated by commas, the baseline first (`default,quell`)")]
    TooFew,
}

impl Side {
    /// Every side there is.
    pub const ALL: [Side; 3] = [Side::Default, Side::Dasec, Side::Quell];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Side::Default => "default",
            Side::Dasec => "dasec",
            Side::Quell => "quell",
        }
    }

    /// The mechanisms the agent applies on this side; `None` where no agent runs.
    pub fn mechanisms(self) -> Option<Vec<Mechanism>> {
        match self {
            Side::Default => None,
            Side::Dasec | Side::Quell => Some(vec![Mechanism::Asymmetry]),
        }
    }

    /// Reads a comma-separated list. The first is the baseline; a side may stand there twice (A/A).
    pub fn parse_list(text: &str) -> Result<Vec<Side>, SideError> {
        let names = text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let sides: Vec<Side> = names.map(Side::from_str).collect::<Result<_, _>>()?;
        if sides.len() < 2 {
            return Err(SideError::TooFew);
        }
        Ok(sides)
    }

    /// One label per side: its name, with `-2`, `-3`, ... where it stands there again.
    pub fn labels(sides: &[Side]) -> Vec<String> {
        let label = |(index, side): (usize, &Side)| {
            let before = sides[..index].iter().filter(|other| *other == side).count();
            if before == 0 {
                side.to_string()
            } else {
                format!("{side}-{}", before + 1)
            }
        };
        sides.iter().enumerate().map(label).collect()
    }
}

impl FromStr for Side {
    type Err = SideError;

    fn from_str(name: &str) -> Result<Side, SideError> {
        let not_built = |why| Err(SideError::NotBuilt(name.to_string(), why));
        match name {
            "default" => Ok(Side::Default),
            "dasec" => Ok(Side::Dasec),
            "quell" => Ok(Side::Quell),
            "share" => not_built("the share mechanism, Accurate Group Scheduling"),
            "akita" => not_built("the criticality mechanism, Akita"),
            "ufo" => not_built("the pools mechanism, UFO"),
            "cfs" | "eevdf" | "credit" | "credit2" | "bvt" | "parties" | "dyniso" | "isolation" => {
                not_built("it runs on the simulator")
            }
            _ if name.starts_with("scx_") => not_built("it runs in the kernel lab"),
            _ => Err(SideError::Unknown(name.to_string())),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

fn known() -> String {
    Side::ALL.map(Side::as_str).join(", ")
}

fn suggest(name: &str) -> String {
    let near = Side::ALL
        .map(|side| (strsim::jaro_winkler(name, side.as_str()), side))
        .into_iter()
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    near.map(|(_, side)| format!(", did you mean `{side}`?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_label_repeats() {
        let sides = Side::parse_list("default, dasec,default").unwrap();
        assert_eq!(sides, [Side::Default, Side::Dasec, Side::Default]);
        assert_eq!(Side::labels(&sides), ["default", "dasec", "default-2"]);
    }

    #[test]
    fn bad_names_say_what_would_be_right() {
        let message = |text: &str| Side::parse_list(text).unwrap_err().to_string();
        assert_eq!(
            message("default,dasc"),
            "`dasc` is no side, did you mean `dasec`?; there are: default, dasec, quell"
        );
        assert_eq!(
            message("default,nonsense"),
            "`nonsense` is no side; there are: default, dasec, quell"
        );
        assert!(message("default,share").contains("side `share` is not built yet"));
        assert!(message("cfs,eevdf").contains("runs on the simulator"));
        assert!(message("default,scx_bpfland").contains("kernel lab"));
        assert!(message("default").contains("at least two"));
        assert!(message("").contains("at least two"));
    }
}
