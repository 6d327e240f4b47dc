//! `kimi-cli chat`.

mod answer;
mod conversation;

use std::io::{IsTerminal, Write, stderr, stdin, stdout};
use std::path::Path;

use anyhow::Context;
use console::style;
use kimi_model::{Engine, FinishReason, GenerateOptions};
use kimi_text::Tokenizer;
use kimi_text::chat::ChatFormat;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use self::answer::Answer;
use self::conversation::Conversation;
use crate::args::{ChatArgs, When};
use crate::exit::{Exit, Usage};
use crate::status::bytes;
use crate::{interrupt, sampling, source, text};

const HELP: &str = "\
/help            this list
/reset           forget the conversation, not the system message
/system TEXT     begin anew with this system message; without TEXT with none
/save FILE       write the conversation as JSON
/load FILE       go on with a conversation that was saved
/stats           position, bytes and times
/quit            leave; so does Ctrl-D
A line that ends in \\ goes on in the next one. Ctrl-C stops an answer, a second one the program.";

pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let dir = args.model.as_deref();
    let model = source::model(dir, args.engine.io, args.engine.ram)?;
    let tokenizer = source::require_tokenizer(dir)?;
    let format = match dir {
        Some(dir) => ChatFormat::of_dir(dir, &tokenizer),
        None => ChatFormat::recognise(&tokenizer, Some(&model.config().model_type), None),
    };
    let format = format.map_err(|error| Usage(format!("{error}; `run` continues raw text")))?;
    let mut options = args.engine.options();
    options.positions = args.engine.context.min(model.config().max_position_embeddings);
    options.read = source::read_settings(&model, args.engine.io, args.engine.ram)?;
    let mut generate = sampling::options(dir, &args.sampling, model.config())?;
    generate.max_tokens = args.max_tokens;
    let mut engine = Engine::new(model, &options)?;
    end_with_the_turn(&mut generate, &engine, format, &tokenizer)?;

    let mut conversation = Conversation::new(format, &engine, args)?;
    let mut chat = Chat { args, tokenizer: &tokenizer, generate, engine: &mut engine };
    if let Some(once) = &args.once {
        let message = if once == "-" { text::read_stdin(false)? } else { once.clone() };
        return Ok(match chat.turn(&mut conversation, &message)? {
            FinishReason::Cancelled => Exit::Interrupted,
            _ => Exit::Ok,
        });
    }
    chat.talk(&mut conversation)
}

/// The end of a turn ends an answer, whatever the files of the model say.
fn end_with_the_turn(
    options: &mut GenerateOptions,
    engine: &Engine,
    format: ChatFormat,
    tokenizer: &Tokenizer,
) -> anyhow::Result<()> {
    let end = format.end_of_turn();
    let id = tokenizer.special_id(end).with_context(|| format!("the tokenizer has no {end}"))?;
    let ids = options.eos_token_ids.get_or_insert_with(|| engine.model().config().eos_token_ids.clone());
    if !ids.contains(&id.0) {
        ids.push(id.0);
    }
    Ok(())
}

/// What all turns share.
struct Chat<'a> {
    args: &'a ChatArgs,
    tokenizer: &'a Tokenizer,
    generate: GenerateOptions,
    engine: &'a mut Engine,
}

impl Chat<'_> {
    /// Reads lines until the end.
    fn talk(&mut self, conversation: &mut Conversation) -> anyhow::Result<Exit> {
        let mut editor = DefaultEditor::new().context("the terminal cannot be read")?;
        let interactive = stdin().is_terminal();
        if interactive && !self.args.verbosity.quiet {
            let name = source::name(self.args.model.as_deref());
            eprintln!("{name}, {}; /help lists what else can be said", conversation.format_name());
        }
        let mut leaving = false;
        loop {
            match read_message(&mut editor, interactive) {
                Ok(message) if message.trim().is_empty() => {}
                Ok(message) => {
                    leaving = false;
                    if let Some(command) = message.trim().strip_prefix('/') {
                        if !self.command(conversation, command) {
                            return Ok(Exit::Ok);
                        }
                    } else if let Err(error) = self.turn(conversation, &message) {
                        // The conversation is as before this message, and may go on with a shorter one.
                        eprintln!("error: {error:#}");
                    }
                }
                Err(ReadlineError::Eof) => return Ok(Exit::Ok),
                Err(ReadlineError::Interrupted) if leaving => return Ok(Exit::Interrupted),
                Err(ReadlineError::Interrupted) => {
                    leaving = true;
                    eprintln!("Ctrl-C again or /quit leaves");
                }
                Err(error) => return Err(error).context("the terminal cannot be read"),
            }
        }
    }

    /// Runs a command; false ends the program.
    fn command(&mut self, conversation: &mut Conversation, command: &str) -> bool {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let done = match name {
            "quit" | "exit" => return false,
            "help" => {
                println!("{HELP}");
                Ok(())
            }
            "reset" => conversation.reset(self.engine),
            "system" => {
                let text = Some(rest.to_owned()).filter(|text| !text.is_empty());
                conversation.set_system(text, self.engine)
            }
            "save" | "load" if rest.is_empty() => Err(anyhow::anyhow!("/{name} needs the name of a file")),
            "save" => conversation.save(Path::new(rest)),
            "load" => conversation.load(Path::new(rest), self.engine),
            "stats" => {
                self.stats(conversation);
                Ok(())
            }
            _ => Err(anyhow::anyhow!("/{name} is not known; /help lists what is")),
        };
        if let Err(error) = done {
            eprintln!("error: {error:#}");
        }
        true
    }

    fn stats(&self, conversation: &Conversation) {
        let (position, capacity) = conversation.position();
        let read = bytes(self.engine.bytes_read().total());
        println!("{position} of {capacity} positions, {} messages, {read} read", conversation.len());
    }

    /// One message and its answer.
    fn turn(&mut self, conversation: &mut Conversation, message: &str) -> anyhow::Result<FinishReason> {
        let terminal = stdout().is_terminal();
        let reasoning = match self.args.reasoning {
            When::Auto => terminal,
            When::Show => true,
            When::Hide => false,
        };
        let before = self.engine.bytes_read().total();
        let prompt = conversation.ask(message, self.tokenizer, self.engine)?;
        let (tokens, new) = (prompt.tokens, prompt.ids.len());
        let quiet = self.args.verbosity.quiet || !stderr().is_terminal();
        let mut answer =
            Answer::new(conversation, prompt.opening, self.tokenizer, reasoning, terminal, quiet)?;
        let generated = interrupt::cancellable(|cancel| {
            let means = (Some(self.tokenizer), cancel);
            let options = &self.generate;
            kimi_model::generate(
                self.engine,
                conversation.session(),
                &prompt.ids,
                options,
                means,
                None,
                &mut answer,
            )
        });
        let turn = answer.finish()?;
        let generation = match generated {
            Ok(generation) => generation,
            Err(error) => {
                conversation.withdraw();
                return Err(error.into());
            }
        };
        conversation.answered(&generation, turn);
        if self.args.verbosity.verbose || (terminal && !self.args.verbosity.quiet) {
            let read = bytes(self.engine.bytes_read().total() - before);
            let seconds = generation.decode_seconds_per_token();
            let pace = seconds.map_or_else(String::new, |seconds| format!(", {seconds:.3} s/token"));
            let (count, (position, capacity)) = (generation.ids.len(), conversation.position());
            let line = format!(
                "{new} of {tokens} prompt tokens computed, {count} generated{pace}, {read} read, {position} of {capacity} positions, {}",
                generation.finish.name()
            );
            writeln!(stderr(), "{}", style(line).dim().for_stderr())?;
        }
        Ok(generation.finish)
    }
}

/// A message of one line, or of several that end in a backslash.
fn read_message(editor: &mut DefaultEditor, interactive: bool) -> Result<String, ReadlineError> {
    let mut message = String::new();
    loop {
        let prompt = match (interactive, message.is_empty()) {
            (false, _) => "",
            (true, true) => "> ",
            (true, false) => ". ",
        };
        let line = editor.readline(prompt)?;
        match line.strip_suffix('\\') {
            Some(part) => {
                message.push_str(part);
                message.push('\n');
            }
            None => {
                message.push_str(&line);
                // A history that does not take a line is no reason to stop.
                let _ = editor.add_history_entry(message.trim());
                return Ok(message);
            }
        }
    }
}
