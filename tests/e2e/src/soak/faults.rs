//! What the fault proxy does to the calls of our programs in a soak.

use std::time::Duration;

use andreas_testbed::faults::{Fault, Rule, Select, Share, Verb};
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};

use super::actions::{Actor, NAMESPACES, Repair};
use crate::cluster::Cluster;

const OPERATOR: &str = "operator-0";

impl Actor {
    /// Adds a rule that ends by itself, or cuts all programs off for a while.
    pub(super) async fn fault(&mut self, c: &Cluster) -> Result<String> {
        let lasts = self.pause((2_000, 12_000));
        let seed = self.rng.between(0, u64::MAX - 1);
        let some = Share::PerMille { share: self.rng.between(100, 500), seed };
        let answer = |status, retry_after| Fault::Answer { status, retry_after };
        let writes = || Select::writes().caller(OPERATOR);
        let rule = match self.rng.between(0, 8) {
            0 => Rule::new(Select::verbs([Verb::Patch]).caller(OPERATOR), answer(409, None)).share(some),
            1 => Rule::new(Select::all(), answer(429, Some(1))).share(some),
            2 => Rule::new(writes(), Fault::LoseAnswer).share(some),
            3 => Rule::new(writes(), Fault::GatewayTimeout).share(some),
            4 => {
                let namespace = *self.rng.one_of(&NAMESPACES).context("namespaces")?;
                let pods = Select::verbs([Verb::Create]).resource("pods").namespace(namespace);
                Rule::new(pods, answer(500, None))
            }
            5 => Rule::new(Select::all(), Fault::Delay(Duration::from_millis(self.rng.between(50, 800)))),
            6 => Rule::new(Select::verbs([Verb::Watch]), Fault::HoldOpenWatches),
            7 => {
                let namespaces: Api<Namespace> = Api::all(c.testbed.client());
                let list = namespaces.list(&ListParams::default().limit(1)).await?;
                let version = list.metadata.resource_version.context("a list has a version")?.parse()?;
                Rule::new(Select::reads().caller(OPERATOR), Fault::OlderReads { version })
            }
            _ => {
                c.faults()?.cut_off(None);
                self.mend_after(lasts, Repair::LetIn);
                return Ok(format!("all cut off for {lasts:?}"));
            }
        };
        let words = format!("{rule:?} for {lasts:?}");
        self.rules.push(c.faults()?.add(rule.lasts(lasts)));
        Ok(words)
    }
}
