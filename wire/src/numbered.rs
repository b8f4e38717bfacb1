//! Enums that travel as plain numbers: an unknown number is an answer, never a value.

/// Declares an enum with a wire number per variant, and the way back from the number.
macro_rules! numbered {
    ($(#[$meta:meta])* pub enum $name:ident: $number:ty { $($(#[$variant_meta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($number)]
        pub enum $name { $($(#[$variant_meta])* $variant = $value,)* }

        impl $name {
            /// Every variant, in wire order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The variant with this wire number, if there is one.
            #[must_use]
            pub fn from_wire(number: $number) -> Option<$name> {
                match number { $($value => Some($name::$variant),)* _ => None }
            }
        }
    };
}
pub(crate) use numbered;
