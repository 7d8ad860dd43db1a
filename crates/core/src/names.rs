//! Names. Cheap to clone, ordered (ties in plans are broken by name), transparent in JSON.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name with this spelling; any text is a name.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// Its spelling.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::new(text)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// The name of a job that is unique in the cluster: `namespace/name`.
    JobId
}
name! {
    /// The name of a node, as the API server spells it.
    NodeName
}
name! {
    /// The name of a namespace.
    NamespaceName
}
name! {
    /// The product name of a GPU, as the label `nvidia.com/gpu.product` spells it, e.g. `NVIDIA-A100-SXM4-80GB`.
    GpuType
}
