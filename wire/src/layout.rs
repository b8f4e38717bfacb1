//! Fixed-offset records: how a plain rkyv struct becomes bytes and is read in place again.
//!
//! Every type here archives to a size known at compile time, with alignment 1 and no relative
//! pointer, so a frame is its header, one fixed body and arrays of equal records, each at an
//! offset that another language can compute from the tables in `docs/engine-protocol.md` and
//! `docs/inventory-protocol.md`.

use rkyv::rancor::{Failure, Panic, Strategy};
use rkyv::ser::Serializer;
use rkyv::validation::archive::ArchiveValidator;
use rkyv::{Archive, Deserialize, Portable, Serialize};
use thiserror::Error;

type Encoder<'a> = Strategy<Serializer<&'a mut Vec<u8>, (), ()>, Panic>;
/// Nothing here has pointers, so no memory of shared ones is kept while bytes are checked.
type Checker<'a> = Strategy<ArchiveValidator<'a>, Failure>;
type Decoder = Strategy<rkyv::de::Pool, Failure>;

/// Why bytes are not the parts of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The frame ends before its parts do.
    #[error("the frame ends before its parts do")]
    Truncated,
    /// Bytes are left after the last part.
    #[error("bytes are left after the frame's last part")]
    TrailingBytes,
    /// A part has a value its type does not allow.
    #[error("a part of the frame has a value its type does not allow")]
    Invalid,
}

/// A struct whose archived form has a fixed size and no pointers.
///
/// Sealed by construction: only the frame structs declared by `fixed!` implement it.
pub trait Fixed:
    Sized + Archive<Archived: FixedArchived<Self> + 'static> + for<'a> Serialize<Encoder<'a>>
{
    /// Bytes of the archived form.
    const BYTES: usize = size_of::<Self::Archived>();

    /// Name, fields and types in order; what the layout hash covers.
    const DESCRIPTION: &'static str;

    /// Appends the archived form to `out`.
    fn append_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let mut serializer = Serializer::new(out, (), ());
        let Ok(_) = rkyv::api::serialize_using::<_, Panic>(self, &mut serializer);
        debug_assert_eq!(serializer.writer.len() - start, Self::BYTES);
    }
}

/// The archived side of a [`Fixed`] type: validated in place, copied out by value.
pub trait FixedArchived<T>:
    Portable + for<'a> rkyv::bytecheck::CheckBytes<Checker<'a>> + Deserialize<T, Decoder>
{
}

impl<A, T> FixedArchived<T> for A where
    A: Portable + for<'a> rkyv::bytecheck::CheckBytes<Checker<'a>> + Deserialize<T, Decoder>
{
}

/// Checks the bytes of one fixed struct and shows them as what they are.
#[inline]
fn access<T: Fixed>(bytes: &[u8]) -> Result<&T::Archived, LayoutError> {
    let checked =
        rkyv::api::access_with_context::<T::Archived, _, Failure>(bytes, &mut ArchiveValidator::new(bytes));
    checked.map_err(|_| LayoutError::Invalid)
}

/// Reads a frame's parts front to back. Cheap to copy; borrows the frame's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// Takes one fixed struct off the front.
    ///
    /// # Errors
    /// [`LayoutError::Truncated`] if fewer bytes are left; [`LayoutError::Invalid`] if they are no `T`.
    pub fn take<T: Fixed>(&mut self) -> Result<T, LayoutError> {
        let bytes = self.take_bytes(T::BYTES)?;
        let archived = access::<T>(bytes)?;
        rkyv::deserialize::<T, Failure>(archived).map_err(|_| LayoutError::Invalid)
    }

    /// Takes `count` equal records off the front, to be read in place.
    ///
    /// # Errors
    /// [`LayoutError::Truncated`] if fewer bytes are left.
    pub fn take_records<T: Fixed>(&mut self, count: usize) -> Result<Records<'a, T>, LayoutError> {
        let length = count.checked_mul(T::BYTES).ok_or(LayoutError::Truncated)?;
        Ok(Records { bytes: self.take_bytes(length)?, record: std::marker::PhantomData })
    }

    /// Takes `length` raw bytes off the front.
    ///
    /// # Errors
    /// [`LayoutError::Truncated`] if fewer bytes are left.
    pub fn take_bytes(&mut self, length: usize) -> Result<&'a [u8], LayoutError> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(LayoutError::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Bytes not taken yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`LayoutError::TrailingBytes`] if anything is left.
    pub fn finish(self) -> Result<(), LayoutError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(LayoutError::TrailingBytes) }
    }
}

/// An array of equal records inside a frame.
#[derive(Debug)]
pub struct Records<'a, T> {
    bytes: &'a [u8],
    record: std::marker::PhantomData<T>,
}

impl<T> Clone for Records<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Records<'_, T> {}

impl<'a, T: Fixed> Records<'a, T> {
    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / T::BYTES
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The records in order, each validated as it is read.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, LayoutError>> + use<'a, T> {
        self.bytes.chunks_exact(T::BYTES).map(|bytes| Reader::new(bytes).take())
    }

    /// The records in order and in place, each validated as it is read.
    pub fn in_place(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<&'a T::Archived, LayoutError>> + use<'a, T> {
        self.bytes.chunks_exact(T::BYTES).map(access::<T>)
    }

    /// The bytes of all records.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// All records by value.
    ///
    /// # Errors
    /// [`LayoutError::Invalid`] at the first record that is no `T`.
    pub fn to_vec(&self) -> Result<Vec<T>, LayoutError> {
        self.iter().collect()
    }
}

/// Declares frame structs: plain fields, archived at fixed offsets.
macro_rules! fixed {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $kind:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
        pub struct $name { $($(#[$field_meta])* pub $field: $kind,)* }
        impl $crate::layout::Fixed for $name {
            const DESCRIPTION: &'static str =
                concat!(stringify!($name), "{", $(stringify!($field), ":", stringify!($kind), ";",)* "}");
        }
    )*};
}
pub(crate) use fixed;
