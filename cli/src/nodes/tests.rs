//! The texts of `nodes`.

use super::*;
use crate::exit;
use crate::inventory::testing::{NOW, objects};

fn args(node: Option<&str>, format: Format) -> NodesArgs {
    let output = OutputArgs { format, no_headers: false };
    NodesArgs { node: node.map(str::to_owned), unhealthy: false, cluster: ConnectArgs::default(), output }
}

fn text(args: &NodesArgs) -> String {
    text_of(args, objects().views(), NOW.parse().unwrap()).unwrap()
}

#[test]
fn each_node_shows_its_holders_its_power_and_what_is_wrong() {
    insta::assert_snapshot!(text(&args(None, Format::Table)));
}

#[test]
fn a_wide_table_says_why_a_node_is_not_planned() {
    insta::assert_snapshot!(text(&args(None, Format::Wide)));
}

#[test]
fn a_name_shows_the_gpus_of_that_node() {
    insta::assert_snapshot!(text(&args(Some("gpu-1"), Format::Table)));
    let error = text_of(&args(Some("nowhere"), Format::Table), objects().views(), NOW.parse().unwrap());
    assert_eq!(exit::code(&error.unwrap_err()), exit::NOT_FOUND);
}

#[test]
fn only_unhealthy_nodes_are_left_where_that_is_asked() {
    let mut args = args(None, Format::Name);
    args.unhealthy = true;
    assert_eq!(text(&args), "gpunode/gpu-2\ngpunode/gpu-3\ngpunode/gpu-4\n");
}

#[test]
fn without_nodes_and_jobs_the_gpus_are_still_shown() {
    let mut objects = objects();
    (objects.nodes, objects.jobs) = (None, None);
    let views = objects.views();
    assert_eq!(views.len(), 4, "one of them is off");
    assert_eq!(
        (views[0].gpu_type.as_deref(), views[0].holders[0].name()),
        (Some("NVIDIA-A100-SXM4-80GB"), "other/notebook-0")
    );
    assert_eq!(views[0].holders[1].name(), "team-a/bert-large-2-0");
    let json = output::list(args(None, Format::Json).output, &COLUMNS, &views, |view| view.name.clone());
    let json: serde_json::Value = serde_json::from_str(&json.unwrap()).unwrap();
    assert_eq!(json["items"][0]["gpuWatts"], 695);
}
