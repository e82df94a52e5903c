//! What `quell-studies` can measure by name: all that `quell` can, and what papers compare with.

use crate::sides::SIDES;
use quell::catalogue::{BUILT_IN, Catalogue};

/// What studies offer.
pub const CATALOGUE: Catalogue = Catalogue {
    program: "quell-studies",
    scenarios: &[BUILT_IN],
    sides: SIDES,
};
