//! The planning methods by name, and the planning options.

use serde::{Deserialize, Serialize};

andreas_model::names! {
    /// A planning method.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum MethodName {
        /// The randomized greedy with shadow prices over time.
        #[default]
        RandomizedGreedy = "randomized-greedy",
        /// Earliest deadline first, on the cheapest free configuration that meets the deadline.
        Edf = "edf",
        /// First come, first served, on the same configuration.
        Fifo = "fifo",
    }
    else "no planning method is called {name:?}: choose {names}"
}

/// Planning options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// The planning method.
    #[serde(default)]
    pub method: MethodName,
    /// Seed of the randomized methods.
    #[serde(default)]
    pub seed: u64,
    /// Maximum number of constructions of a randomized method; time is never used.
    #[serde(default = "thousand")]
    pub trials: u64,
    /// Allowed gap of the randomized methods: distance of cost from bound, as part of the cost, 0 <= gap < 1.
    /// A larger gap needs less work. 0 uses all trials.
    #[serde(default)]
    pub gap: f64,
}

fn thousand() -> u64 {
    1000
}

impl Default for Options {
    fn default() -> Self {
        Self { method: MethodName::default(), seed: 0, trials: thousand(), gap: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_gets_an_error_that_lists_the_methods() {
        let error = "tiresias".parse::<MethodName>().map(|_| ()).map_err(|e| e.to_string());
        let listed = "no planning method is called \"tiresias\": choose randomized-greedy, edf, fifo";
        assert_eq!(error, Err(listed.to_owned()));
        for method in MethodName::ALL {
            assert_eq!(method.as_str().parse(), Ok(method));
        }
    }
}
