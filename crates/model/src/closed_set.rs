//! Enums of which each variant has a name.

/// The error of a name that a closed set lacks; its message lists those that there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownName(pub String);

/// An enum with `ALL`, `as_str`, `named` and `Display`.
///
/// A variant is called as it is written here, or by the text behind it. With `else` and a message, in which `{name:?}` is the
/// unknown name and `{names}` lists the known ones, it has `FromStr` too.
///
/// ```
/// andreas_model::names! {
///     /// A colour.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Colour {
///         /// As leaves.
///         Green,
///         /// As the sea.
///         Blue = "deep blue",
///     }
///     else "no colour is called {name:?}: choose {names}"
/// }
/// assert_eq!(Colour::ALL.map(Colour::as_str), ["Green", "deep blue"]);
/// assert_eq!("deep blue".parse(), Ok(Colour::Blue));
/// let error = "red".parse::<Colour>().unwrap_err().to_string();
/// assert_eq!(error, "no colour is called \"red\": choose Green, deep blue");
/// ```
#[macro_export]
macro_rules! names {
    (@text $variant:ident) => { stringify!($variant) };
    (@text $variant:ident $text:literal) => { $text };
    (@parse $name:ident $message:literal) => {
        impl ::core::str::FromStr for $name {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownName> {
                Self::named(text).ok_or_else(|| {
                    let names = Self::ALL.map(Self::as_str).join(", ");
                    $crate::UnknownName(format!($message, name = text, names = names))
                })
            }
        }
    };
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$of_variant:meta])* $variant:ident $(= $text:literal)?),+ $(,)?
        }
        $(else $message:literal)?
    ) => {
        $(#[$attribute])*
        $visibility enum $name { $($(#[$of_variant])* $variant),+ }

        #[allow(dead_code, reason = "not every enum needs all of it")]
        impl $name {
            /// All, in this order.
            $visibility const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant),+];

            /// Its name in text and in files.
            $visibility const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $crate::names!(@text $variant $($text)?)),+ }
            }

            /// The one of this name.
            $visibility fn named(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == text)
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        $($crate::names!(@parse $name $message);)?
    };
}

#[cfg(test)]
mod tests {
    names! {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        enum Colour {
            Red,
            #[default]
            Green = "dark green",
            Blue,
        }
        else "no colour is called {name:?}; there are {names}"
    }

    #[test]
    fn variants_keep_their_order_their_names_and_their_attributes() {
        assert_eq!(Colour::ALL.map(Colour::as_str), ["Red", "dark green", "Blue"]);
        assert!(Colour::ALL.is_sorted());
        assert_eq!(Colour::default().to_string(), "dark green");
        assert_eq!(("dark green".parse(), Colour::named("Green")), (Ok(Colour::Green), None));
        let error = "red".parse::<Colour>().map_err(|error| error.to_string());
        assert_eq!(error, Err("no colour is called \"red\"; there are Red, dark green, Blue".to_owned()));
    }
}
