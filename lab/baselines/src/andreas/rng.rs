//! The random numbers of the published optimizer.

use andreas_planner::policy::Random;

use crate::options::Accounting;

/// Modulus and multiplier of Park and Miller's minimal standard generator.
const MODULUS: u64 = 2_147_483_647;
const MULTIPLIER: u64 = 16_807;

/// A source of random numbers.
pub(super) enum Numbers {
    /// The planner's.
    Planner(Box<Random>),
    /// The default engine of the GNU C++ library (`minstd_rand0`, Park and Miller 1988), as in the published optimizer.
    MinStd(u64),
}

impl Numbers {
    /// The original's for a catalogue, else the planner's.
    pub fn new(accounting: &Accounting, seed: u64) -> Self {
        match accounting {
            Accounting::Predicted => Self::Planner(Box::new(Random::new(seed))),
            Accounting::Catalogue(_) => Self::MinStd((seed % MODULUS).max(1)),
        }
    }

    /// A uniform number in [0, 1).
    pub fn unit_interval(&mut self) -> f64 {
        match self {
            Self::Planner(random) => random.unit_interval(),
            Self::MinStd(state) => {
                // Two draws fill the 53 bits of a double, the lower part first.
                let mut next = || {
                    *state = *state * MULTIPLIER % MODULUS;
                    (*state - 1) as f64
                };
                let range = (MODULUS - 1) as f64;
                let (low, high) = (next(), next());
                (low + high * range) / (range * range)
            }
        }
    }
}
