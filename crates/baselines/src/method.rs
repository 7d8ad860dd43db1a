//! All methods by name: those of the product and those of other systems.

use std::fmt;
use std::str::FromStr;

use andreas_planner::MethodName;
use serde::{Deserialize, Serialize};

/// A method of the product or of another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// First come, first served, on the cheapest free configuration that meets the deadline.
    Fifo,
    /// First come, first served, with the GPU count the user asked for.
    FifoFixed,
    /// Earliest deadline first.
    Edf,
    /// Earliest deadline first, with the GPU count the user asked for.
    EdfFixed,
    /// Highest weight first.
    Priority,
    /// Highest weight first, with the GPU count the user asked for.
    PriorityFixed,
    /// The published randomized greedy of ANDREAS.
    Andreas,
    /// The same with its local search on the ten best plans.
    AndreasLs,
    /// The product's default: the randomized greedy with shadow prices over time.
    RandomizedGreedy,
    /// The same, with branch and bound that proves the optimum of the step as far as the trials allow.
    Exact,
    /// Tiresias: least attained GPU-seconds first, in queues; preemptive, fixed requests.
    Tiresias,
    /// ElasticFlow: the smallest share that meets the deadline, then the rest by largest gain.
    Elasticflow,
    /// Gavel: the most progress per joule with deadlines met, in rounds; fixed requests.
    Gavel,
    /// Gandiva_fair: GPU time in proportion to the namespaces' tickets, in rounds; fixed requests.
    GandivaFair,
    /// PowerFlow-like: the largest time gain per added energy, under the power budget.
    Powerflow,
    /// Shortest remaining time first: an oracle; preemptive, fixed requests.
    Srtf,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 16] = [
        Self::Fifo,
        Self::FifoFixed,
        Self::Edf,
        Self::EdfFixed,
        Self::Priority,
        Self::PriorityFixed,
        Self::Andreas,
        Self::AndreasLs,
        Self::RandomizedGreedy,
        Self::Exact,
        Self::Tiresias,
        Self::Elasticflow,
        Self::Gavel,
        Self::GandivaFair,
        Self::Powerflow,
        Self::Srtf,
    ];

    /// Its name on command lines and in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fifo => MethodName::Fifo.as_str(),
            Self::FifoFixed => "fifo-fixed",
            Self::Edf => MethodName::Edf.as_str(),
            Self::EdfFixed => "edf-fixed",
            Self::Priority => "priority",
            Self::PriorityFixed => "priority-fixed",
            Self::Andreas => "andreas",
            Self::AndreasLs => "andreas-ls",
            Self::RandomizedGreedy => MethodName::RandomizedGreedy.as_str(),
            Self::Exact => MethodName::Exact.as_str(),
            Self::Tiresias => "tiresias",
            Self::Elasticflow => "elasticflow",
            Self::Gavel => "gavel",
            Self::GandivaFair => "gandiva-fair",
            Self::Powerflow => "powerflow",
            Self::Srtf => "srtf",
        }
    }

    /// The product's method of this name; `None`: only this crate has it.
    pub fn of_product(self) -> Option<MethodName> {
        MethodName::ALL.into_iter().find(|name| Self::from(*name) == self)
    }
}

impl From<MethodName> for Method {
    fn from(name: MethodName) -> Self {
        match name {
            MethodName::RandomizedGreedy => Self::RandomizedGreedy,
            MethodName::Exact => Self::Exact,
            MethodName::Edf => Self::Edf,
            MethodName::Fifo => Self::Fifo,
        }
    }
}

impl Default for Method {
    fn default() -> Self {
        MethodName::default().into()
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error of an unknown method name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no method is called {0:?}: choose {names}", names = method_names())]
pub struct UnknownMethod(String);

/// All method names, comma-separated, for the error message.
fn method_names() -> String {
    Method::ALL.map(Method::as_str).join(", ")
}

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        Self::ALL.into_iter().find(|m| m.as_str() == name).ok_or_else(|| UnknownMethod(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_text_and_in_files_and_those_of_the_product() {
        for method in Method::ALL {
            assert_eq!(method.as_str().parse(), Ok(method));
            assert_eq!(serde_json::to_value(method).unwrap(), method.as_str());
        }
        for name in MethodName::ALL {
            assert_eq!(Method::from(name).as_str(), name.as_str());
            assert_eq!(Method::from(name).of_product(), Some(name));
        }
    }

    #[test]
    fn an_unknown_name_gets_an_error_that_lists_the_methods() {
        let error = "lottery".parse::<Method>().unwrap_err().to_string();
        assert!(error.contains("\"lottery\"") && error.ends_with("gandiva-fair, powerflow, srtf"), "{error}");
    }
}
