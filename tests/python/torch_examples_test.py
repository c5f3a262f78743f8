"""The examples that compute with PyTorch if they are asked to; see examples_test.py."""

import examples_test
import launch


class TorchExamples(examples_test.Case):

    def test_a_parameter_server_learns_with_tensors(self):
        text = self.example(3, "parameter_server.py", "--torch", "--steps=450")
        self.assert_ring_was_learned(text, 900)

    def test_a_pipeline_of_modules_computes_what_one_piece_does(self):
        self.assert_pipeline_was_right(self.example(3, "pipeline.py", "--torch", "--steps=80"))


if __name__ == "__main__":
    examples_test.require("numpy", "torch")
    launch.main()
