//! All methods by name: those of the product and those of other systems.

use andreas_planner::MethodName;
use serde::{Deserialize, Serialize};

andreas_model::names! {
    /// A method of the product or of another system.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Method {
        /// First come, first served, on the cheapest free configuration that meets the deadline.
        Fifo = "fifo",
        /// First come, first served, with the GPU count the user asked for.
        FifoFixed = "fifo-fixed",
        /// Earliest deadline first.
        Edf = "edf",
        /// Earliest deadline first, with the GPU count the user asked for.
        EdfFixed = "edf-fixed",
        /// Highest weight first.
        Priority = "priority",
        /// Highest weight first, with the GPU count the user asked for.
        PriorityFixed = "priority-fixed",
        /// The published randomized greedy of ANDREAS.
        Andreas = "andreas",
        /// The same with its local search on the ten best plans.
        AndreasLs = "andreas-ls",
        /// The product's default: the randomized greedy with shadow prices over time.
        RandomizedGreedy = "randomized-greedy",
        /// Tiresias: least attained GPU-seconds first, in queues; preemptive, fixed requests.
        Tiresias = "tiresias",
        /// ElasticFlow: the smallest share that meets the deadline, then the rest by largest gain.
        Elasticflow = "elasticflow",
        /// Gavel: the most progress per joule with deadlines met, in rounds; fixed requests.
        Gavel = "gavel",
        /// Gandiva_fair: GPU time in proportion to the namespaces' tickets, in rounds; fixed requests.
        GandivaFair = "gandiva-fair",
        /// PowerFlow-like: the largest time gain per added energy, under the power budget.
        Powerflow = "powerflow",
        /// Shortest remaining time first: an oracle; preemptive, fixed requests.
        Srtf = "srtf",
    }
    else "no method is called {name:?}: choose {names}"
}

impl Method {
    /// The product's method of this name; `None`: only this crate has it.
    pub fn of_product(self) -> Option<MethodName> {
        MethodName::ALL.into_iter().find(|name| Self::from(*name) == self)
    }

    /// It shares GPUs by time, in rounds. Programs know when a round ends, and save then (Gavel's paper, section 6: its iterator
    /// saves at the end of a lease; Gandiva_fair suspends and resumes).
    pub const fn in_rounds(self) -> bool {
        matches!(self, Self::Gavel | Self::GandivaFair)
    }
}

impl From<MethodName> for Method {
    fn from(name: MethodName) -> Self {
        match name {
            MethodName::RandomizedGreedy => Self::RandomizedGreedy,
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
