//! A method with its options and what it remembers between decisions.

use andreas_planner::policy::{Instance, Outcome, Policy, plan_with};
use andreas_planner::{MethodName, Plan, Snapshot, SnapshotError};

use crate::memory::Memory;
use crate::method::Method;
use crate::options::{Accounting, Options};
use crate::tickets::Tickets;
use crate::{andreas, check, in_order, policies};

/// A method that decides again and again.
///
/// The product's methods and those in a fixed order remember nothing. The memory of the others may be saved, to
/// go on in another process.
#[derive(Clone, Debug, Default)]
pub struct Scheduler {
    /// How it decides.
    pub options: Options,
    /// Shares of the namespaces.
    pub tickets: Tickets,
    /// What it remembers of its decisions; `None`: nothing, as before its first.
    pub memory: Option<Memory>,
}

impl Scheduler {
    /// A scheduler with equal shares and without memory.
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// Plans all jobs: where they run, which wait and why.
    ///
    /// # Errors
    /// [`SnapshotError`] with the field, for a snapshot, tickets or a memory with invalid numbers or names.
    pub fn plan(&mut self, snapshot: &Snapshot) -> Result<Plan, SnapshotError> {
        check::tickets(&self.tickets)?;
        self.memory.as_ref().map_or(Ok(()), check::memory)?;
        plan_with(self, snapshot)
    }

    /// The product's method, where it decides in the product's way.
    fn product_method(&self) -> Option<MethodName> {
        let by_catalogue = matches!(self.options.accounting, Accounting::Catalogue(_));
        self.options.method.of_product().filter(|name| !by_catalogue || *name == MethodName::RandomizedGreedy)
    }
}

impl Policy for Scheduler {
    fn name(&self) -> &'static str {
        self.options.method.as_str()
    }

    fn seed(&self) -> u64 {
        self.options.seed
    }

    fn decide(&mut self, instance: &Instance<'_>) -> Outcome {
        let last = self.memory.take();
        if let Some(name) = self.product_method() {
            return self.options.for_product(name).decide(instance);
        }
        match self.options.method {
            Method::Andreas | Method::AndreasLs => andreas::decide(instance, &self.options),
            Method::Tiresias
            | Method::Elasticflow
            | Method::Gavel
            | Method::GandivaFair
            | Method::Powerflow
            | Method::Srtf => {
                let (outcome, memory) =
                    policies::decide(instance, self.options.method, &self.tickets, last.as_ref());
                self.memory = Some(memory);
                outcome
            }
            _ => in_order::decide(instance, &self.options),
        }
    }
}
