//! kube-scheduler extender: filter, prioritize, bind.
fn main() {}
