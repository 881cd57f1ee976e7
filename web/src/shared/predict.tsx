// Predict, then reveal: the answer appears only after the reader has committed a guess.

import { useSignal } from "@preact/signals";
import { useId } from "preact/hooks";

export interface Question {
  prompt: string;
  /** Choices; without them the reader types. */
  options?: string[];
  answer: string;
  /** Whether a typed guess is right; by default the same text without spaces. */
  isRight?: (guess: string) => boolean;
  placeholder?: string;
}

export interface PredictProps {
  title: string;
  /** Level of the heading on its page. */
  level?: 2 | 3;
  context?: string;
  questions: Question[];
  explanation: string;
  onReveal?: (rightCount: number) => void;
  onDone?: () => void;
}

export function isRightGuess(question: Question, guess: string): boolean {
  const plain = (text: string) => text.replace(/[\s()[\]]+/g, "").replace(/,$/, "").toLowerCase();
  return question.isRight ? question.isRight(guess) : plain(guess) === plain(question.answer);
}

export function Predict({ title, level = 3, context, questions, explanation, onReveal, onDone }: PredictProps) {
  const guesses = useSignal<string[]>(questions.map(() => ""));
  const isRevealed = useSignal(false);
  const id = useId();
  const setGuess = (index: number, guess: string) => {
    guesses.value = guesses.value.map((old, at) => (at === index ? guess : old));
  };
  const reveal = (event: Event) => {
    event.preventDefault();
    isRevealed.value = true;
    onReveal?.(questions.filter((question, index) => isRightGuess(question, guesses.value[index]!)).length);
  };
  return (
    <form class="predict" onSubmit={reveal} aria-label={title}>
      {level === 2 ? <h2>{title}</h2> : <h3>{title}</h3>}
      {context && <p><code>{context}</code></p>}
      {questions.map((question, index) => {
        const isRight = isRevealed.value && isRightGuess(question, guesses.value[index]!);
        return (
          <fieldset key={question.prompt} disabled={isRevealed.value}>
            <legend>{question.prompt}</legend>
            {question.options ? (
              <div class="predict-options">
                {question.options.map((option) => (
                  <label key={option}>
                    <input type="radio" name={`${id}-${index}`} value={option} required checked={guesses.value[index] === option} onChange={() => setGuess(index, option)} />
                    {option}
                  </label>
                ))}
              </div>
            ) : (
              <input type="text" class="code" required aria-label={question.prompt} placeholder={question.placeholder ?? ""} value={guesses.value[index]} onInput={(event) => setGuess(index, event.currentTarget.value)} />
            )}
            {isRevealed.value && (
              <p class={isRight ? "predict-right" : "predict-wrong"}>{isRight ? "Correct: " : "Not quite: "}<strong>{question.answer}</strong></p>
            )}
          </fieldset>
        );
      })}
      <div aria-live="polite">{isRevealed.value && <p class="predict-explanation">{explanation}</p>}</div>
      {isRevealed.value ? (
        onDone && <button type="button" class="primary" onClick={onDone}>Show it</button>
      ) : (
        <button type="submit" class="primary">Commit the guess</button>
      )}
    </form>
  );
}
