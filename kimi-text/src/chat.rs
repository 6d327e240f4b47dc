//! Conversations as token ids, and generated ids as an assistant's turn.
//!
//! [`ChatPrompt`] renders [`Message`]s in the format of a model. Markup and text are kept apart from the beginning: a
//! marker is a special token, everything else is encoded with [`Specials::AsText`](crate::Specials::AsText), so that no
//! message, file, tool result, tool or name can forge a turn, whatever it holds.
//!
//! [`ChatParser`] takes ids as they are generated and tells [`ChatEvent`]s: reasoning, answer, tool calls. It looks at
//! the ids of markers, never at text, so quoted markup closes nothing and no part of a marker gets out.
//!
//! | format | models | markers |
//! | --- | --- | --- |
//! | [`ChatFormat::K3`] | Kimi K3 | `<\|open\|>`, `<\|close\|>`, `<\|sep\|>`, `<\|end_of_msg\|>` around tags |
//! | [`ChatFormat::K2_INSTRUCT_0711`], [`ChatFormat::K2_INSTRUCT`] | Kimi K2 Instruct, Kimi-Linear, Moonlight | `<\|im_user\|>` and its like |
//! | [`ChatFormat::K2_THINKING`], [`ChatFormat::K2_5`], [`ChatFormat::K2_6`] | their namesakes | those, `<think>` and `</think>` |
//!
//! Images are refused: [`ChatError::Image`].

mod call;
mod error;
mod events;
mod format;
mod k2;
mod k3;
mod message;
mod options;
mod parser;
mod prompt;
mod schema;

pub use error::{ChatError, MissingMarker, UnknownEffort};
pub use events::ChatEvent;
pub use format::{ChatFormat, FormatError, UnknownFormatName};
pub use message::{Message, Part, Role, ToolCall};
pub use options::{ChatOptions, Continuation, Effort, ResponseFormat, ToolChoice};
pub use parser::ChatParser;
pub use prompt::{ChatPrompt, Opening, Segment};
