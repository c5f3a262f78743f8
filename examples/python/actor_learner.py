#!/usr/bin/env python3
"""Reinforcement learning: observers play a game, and an agent decides for all of them and learns.

  muster run --nproc-per-node 4 examples/python/actor_learner.py

The game: a ball falls through a field, one row at a time, pushed aside by the wind now and then,
and a basket at the bottom moves to the left, to the right, or stays. Caught is worth 1, missed -1.

Worker 0 has the policy; each other worker plays. Observers ask for an action at every step. The
agent waits until all of them have asked, computes the probabilities of all actions in one go, and
answers all: asynchronous execution, so the requests that wait hold no thread. After each round of
games it moves the policy towards what was worth more than usual (REINFORCE).
"""

import argparse
import os
import threading

import numpy as np

import muster.rpc as rpc
from muster.futures import Future, wait_all

WIDTH = 7
HEIGHT = 8
MOVES = (-1, 0, 1)
FEATURES = 2 * WIDTH - 1


class Game:
    """The ball in its column, the basket in its, and how many rows are left to fall."""

    def __init__(self, random):
        self.random = random

    def start(self):
        self.ball, self.basket = self.random.integers(WIDTH, size=2)
        self.rows = HEIGHT
        return self.look()

    def look(self):
        """What the policy sees: where the ball is, as seen from the basket."""
        features = np.zeros(FEATURES)
        features[self.ball - self.basket + WIDTH - 1] = 1
        return features

    def move(self, action):
        """What is seen then, the reward, and whether the game is over."""
        self.basket = np.clip(self.basket + MOVES[action], 0, WIDTH - 1)
        self.rows -= 1
        if self.rows == 0:
            return self.look(), 1 if self.ball == self.basket else -1, True
        if self.random.random() < 0.1:
            self.ball = np.clip(self.ball + self.random.choice((-1, 1)), 0, WIDTH - 1)
        return self.look(), 0, False


class Observer:
    """Plays games on its worker."""

    def __init__(self, number):
        self.number = number
        self.game = Game(np.random.default_rng(number))

    def play(self, agent):
        """Plays one game with what `agent`, a reference, decides; the reward."""
        seen, is_over = self.game.start(), False
        while not is_over:
            action = agent.rpc_sync().choose(self.number, seen)
            seen, reward, is_over = self.game.move(action)
        return reward


class Agent:
    """The policy, and what has been seen and done in the games of this round."""

    def __init__(self, observer_count, rate):
        self.weights = np.zeros((FEATURES, len(MOVES)))
        self.rate = rate
        self.usual = 0.0
        self.random = np.random.default_rng(0)
        self.observer_count = observer_count
        self.lock = threading.Lock()
        self.waiting = {}
        self.batches = 0
        self.history = []

    def probabilities(self, seen):
        scores = seen @ self.weights
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)

    @rpc.functions.async_execution
    def choose(self, observer, seen):
        """A future of the action. All games are equally long, so all ask equally often."""
        answer = Future()
        with self.lock:
            self.waiting[observer] = (seen, answer)
            if len(self.waiting) < self.observer_count:
                return answer
            asked = [self.waiting[number] for number in sorted(self.waiting)]
            self.waiting = {}
            batch = np.stack([seen for seen, _ in asked])
            chances = self.probabilities(batch)
            actions = [self.random.choice(len(MOVES), p=row) for row in chances]
            self.history.append((batch, actions, chances))
            self.batches += 1
        for (_, waiting), action in zip(asked, actions):
            waiting.set_result(action)
        return answer

    def learn(self, rewards):
        """Makes what was done in this round likelier where it was worth more than usual."""
        advantage = np.array(rewards) - self.usual
        gradient = np.zeros_like(self.weights)
        for batch, actions, chances in self.history:
            by_score = -chances
            by_score[np.arange(len(actions)), actions] += 1
            gradient += batch.T @ (by_score * advantage[:, None])
        self.weights += self.rate * gradient / self.observer_count
        self.usual += 0.05 * (np.mean(rewards) - self.usual)
        self.history = []


def lead(observer_names, options):
    agent = Agent(len(observer_names), options.rate)
    agent_reference = rpc.RRef(agent)
    observers = [rpc.remote(name, Observer, args=(number,))
                 for number, name in enumerate(observer_names)]
    recent = []
    for round_number in range(1, options.rounds + 1):
        games = [observer.rpc_async(timeout=0).play(agent_reference) for observer in observers]
        rewards = wait_all(games)
        agent.learn(rewards)
        recent.append(np.mean(rewards))
        if round_number % options.report == 0:
            print(f"round {round_number}: reward {np.mean(recent[-options.report:]):+.2f}",
                  flush=True)
    print(f"{agent.batches} batches of {len(observers)} observers, {HEIGHT} for each game")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=600, help="of one game for each observer")
    parser.add_argument("--report", type=int, default=100, help="after so many rounds")
    parser.add_argument("--rate", type=float, default=0.3, help="how far a step goes")
    options = parser.parse_args()

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size < 2:
        raise SystemExit("an agent needs at least one observer: --nproc-per-node 2")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        lead([f"worker{other}" for other in range(1, world_size)], options)
    rpc.shutdown()


if __name__ == "__main__":
    main()
