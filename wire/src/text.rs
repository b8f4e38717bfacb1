//! Bounded text at a fixed offset: a length and a zero-padded array.

use thiserror::Error;

/// UTF-8 of at most `N` bytes inside a frame.
#[derive(Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Text<const N: usize> {
    /// Bytes used.
    length: u16,
    /// The text, then zeros.
    bytes: [u8; N],
}

/// The text does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{length} bytes of text: the field holds at most {limit}")]
pub struct TextTooLong {
    /// Bytes given.
    pub length: usize,
    /// Bytes the field holds.
    pub limit: usize,
}

impl<const N: usize> Text<N> {
    /// No text.
    pub const EMPTY: Text<N> = Text { length: 0, bytes: [0; N] };

    /// Copies `text` in.
    ///
    /// # Errors
    /// [`TextTooLong`] beyond `N` bytes.
    pub fn new(text: &str) -> Result<Text<N>, TextTooLong> {
        let mut field = Text::EMPTY;
        let target = field.bytes.get_mut(..text.len());
        target.ok_or(TextTooLong { length: text.len(), limit: N })?.copy_from_slice(text.as_bytes());
        field.length = text.len() as u16;
        Ok(field)
    }

    /// Copies as much of `text` as fits, cut at a character boundary.
    #[must_use]
    pub fn cut(text: &str) -> Text<N> {
        let mut end = text.len().min(N);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Text::new(&text[..end]).expect("cut to the field's size")
    }

    /// The text, if it is well formed: valid UTF-8, a length within the field, zeros behind it.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let (used, padding) = self.bytes.split_at_checked(self.length as usize)?;
        if padding.iter().any(|&byte| byte != 0) {
            return None;
        }
        std::str::from_utf8(used).ok()
    }
}

impl<const N: usize> std::fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Text({:?})", self.as_str())
    }
}
