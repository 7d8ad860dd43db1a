//! What the page asks, read from the cluster with the kubeconfig's credentials.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::DEFAULT_POLICY;
use andreas_api::query::{Explanation, Queue, WhatIf, WhatIfRequest, path};
use andreas_api::slim::SlimEnergyPolicy;
use andreas_runtime::clock;
use anyhow::Result;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::power;
use crate::ask::AskArgs;
use crate::ask::timeline::{JobRecord, Timeline, records};
use crate::ask::transport::Operator;
use crate::cluster::ClusterError;
use crate::inventory::Objects;

/// A connection is used so long: tokens of plug-ins and of service accounts are valid for ten minutes or more.
const TOKEN_FOR: Duration = Duration::from_secs(240);
/// How old an answer may be that is given again: several tabs ask as much as one.
const FRESH: Duration = Duration::from_secs(2);
/// The same of objects that the API server lists whole, and that change once a minute or seldom.
const OBJECTS_FRESH: Duration = Duration::from_secs(15);

/// A connection that is made anew before its token ends.
pub struct Session {
    ask: AskArgs,
    limit: usize,
    operator: Mutex<(Instant, Arc<Operator>)>,
    timeline: Kept<Value>,
    records: Kept<(HashMap<String, JobRecord>, Option<String>)>,
    nodes: Kept<Value>,
    power: Kept<Value>,
}

/// An answer and when it was given.
struct Kept<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Kept<T> {
    /// The last answer if it is fresh, else a new one. Who asks meanwhile waits for it.
    async fn or(&self, fresh: Duration, ask: impl Future<Output = Result<T>>) -> Result<Arc<T>> {
        let mut last = self.0.lock().await;
        if let Some((_, answer)) = last.as_ref().filter(|(at, _)| at.elapsed() < fresh) {
            return Ok(Arc::clone(answer));
        }
        let answer = Arc::new(ask.await?);
        *last = Some((Instant::now(), Arc::clone(&answer)));
        Ok(answer)
    }
}

impl Session {
    /// Finds the cluster and a token.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used, or no token can be had.
    pub async fn connect(ask: AskArgs, limit: usize) -> Result<Self> {
        let operator = Operator::connect(&ask).await?;
        Ok(Self::new(ask, operator, limit))
    }

    /// With this connection.
    pub fn new(ask: AskArgs, operator: Operator, limit: usize) -> Self {
        let operator = Mutex::new((Instant::now(), Arc::new(operator)));
        let (timeline, records, nodes, power) =
            (Kept::default(), Kept::default(), Kept::default(), Kept::default());
        Self { ask, limit, operator, timeline, records, nodes, power }
    }

    async fn operator(&self) -> Result<Arc<Operator>> {
        let mut last = self.operator.lock().await;
        if last.0.elapsed() > TOKEN_FOR {
            *last = (Instant::now(), Arc::new(Operator::connect(&self.ask).await?));
        }
        Ok(Arc::clone(&last.1))
    }

    /// After a refusal of the credentials: the next question makes a new connection.
    async fn renew<T>(&self, answer: Result<T>) -> Result<T> {
        let refuses = |cause: &(dyn std::error::Error + 'static)| {
            matches!(cause.downcast_ref::<ClusterError>(), Some(ClusterError::Unauthorized(_)))
        };
        if answer.as_ref().is_err_and(|error| error.chain().any(refuses)) {
            let mut last = self.operator.lock().await;
            if let Some(long_ago) = last.0.checked_sub(TOKEN_FOR) {
                last.0 = long_ago;
            }
        }
        answer
    }

    /// The jobs over time.
    pub async fn timeline(&self) -> Result<Arc<Value>> {
        let ask = async {
            let operator = self.operator().await?;
            let path = path::queue_of(&operator.namespace, self.limit);
            let records = self.records.or(OBJECTS_FRESH, async {
                // The figures ahead do not need them.
                Ok(match operator.jobs().await {
                    Ok(jobs) => (records(jobs), None),
                    Err(error) => (HashMap::new(), Some(format!("without past attempts: {error}"))),
                })
            });
            let (queue, records) = tokio::join!(operator.get::<Queue>(&path), records);
            let (queue, records) = (queue?, records?);
            let mut timeline = Timeline::new(queue, &records.0, clock::now());
            timeline.notes.extend(records.1.clone());
            Ok(serde_json::to_value(&timeline)?)
        };
        self.renew(self.timeline.or(FRESH, ask).await).await
    }

    /// Who holds which GPU.
    pub async fn nodes(&self) -> Result<Arc<Value>> {
        let ask = async {
            let objects = Objects::read(self.operator().await?.cluster()).await?;
            Ok(json!({"items": objects.views(), "notes": objects.notes}))
        };
        self.renew(self.nodes.or(OBJECTS_FRESH, ask).await).await
    }

    /// The budget, what is drawn against it, and the price of energy.
    pub async fn power(&self) -> Result<Arc<Value>> {
        let ask = async {
            let operator = self.operator().await?;
            let policy: SlimEnergyPolicy = operator.cluster().get(None, DEFAULT_POLICY).await?;
            Ok(serde_json::to_value(power::of(&policy, clock::now()))?)
        };
        self.renew(self.power.or(OBJECTS_FRESH, ask).await).await
    }

    /// What decided about a job. `changes`: changes are tried however many jobs there are.
    pub async fn explain(&self, job: &str, changes: bool) -> Result<Explanation> {
        let operator = self.operator().await?;
        let of = if changes { path::explain_with_changes } else { path::explain };
        self.renew(operator.get(&of(&operator.namespace, job)).await).await
    }

    /// The effect of a change.
    pub async fn what_if(&self, question: &WhatIfRequest) -> Result<WhatIf> {
        let operator = self.operator().await?;
        self.renew(operator.post(&path::what_if(&operator.namespace), question).await).await
    }
}
