//! The scenarios of [`both`](crate::both) on pretend nodes; `tests/kubelets` runs them on real ones.

use andreas_e2e::cluster::{Options, a100};
use anyhow::Result;
use serde_json::json;

use crate::both;

fn pretend() -> Options {
    Options { groups: vec![a100(2)], install: Some(json!({})), ..Options::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_over_two_nodes_stops_and_resumes_from_its_checkpoint() -> Result<()> {
    both::a_gang_over_two_nodes_stops_and_resumes_from_its_checkpoint(pretend()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_survives_a_power_cut() -> Result<()> {
    both::a_gang_survives_a_power_cut(pretend()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_sends_its_job_to_another() -> Result<()> {
    both::a_drained_node_sends_its_job_to_another(pretend()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_programs_are_killed_under_a_gang() -> Result<()> {
    both::our_own_programs_are_killed_under_a_gang(pretend()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_fails_under_a_job_costs_its_user_nothing() -> Result<()> {
    both::a_gpu_that_fails_under_a_job_costs_its_user_nothing(pretend()).await
}
