//! The pretend kubelets of a test bed, from a scenario's side.

use andreas_testbed::Testbed;

pub use andreas_test_nodes::NodesClient;

/// The control door of a test bed's pretend kubelets.
pub fn client(testbed: &Testbed) -> NodesClient {
    NodesClient::new(testbed.kubelets_socket())
}
